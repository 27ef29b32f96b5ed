// Closed-form schedules; a step counts as applied when its loss and its gradient norm are finite.
#include <algorithm>
#include <cmath>
#include <numbers>

#include "kernels/base/check.h"
#include "kernels/step_control.h"

namespace xce {

double learning_rate(const Schedule& s, int64_t update) {
  if (update < s.warmup) return s.lr * static_cast<double>(update + 1) / static_cast<double>(s.warmup);
  if (s.kind == ScheduleKind::kConstant) return s.lr;
  int64_t begin = s.kind == ScheduleKind::kWsd ? std::max(s.warmup, s.total - s.decay) : s.warmup;
  if (update < begin) return s.lr;
  if (update >= s.total) return s.min_lr;
  double done = static_cast<double>(update - begin) / static_cast<double>(s.total - begin);
  double left = s.kind == ScheduleKind::kCosine ? 0.5 * (1 + std::cos(std::numbers::pi * done)) : 1 - done;
  return s.min_lr + (s.lr - s.min_lr) * left;
}

void launch(const CpuExec&, const StepControl& args) {
  XCE_CHECK(args.loss && args.norm2 && args.state, "StepControl.loss, .norm2 and .state not null", "null");
  XCE_CHECK(args.schedule.warmup >= 0, "StepControl.schedule.warmup >= 0", args.schedule.warmup);
  XCE_CHECK(args.schedule.decay >= 0, "StepControl.schedule.decay >= 0", args.schedule.decay);
  XCE_CHECK(args.max_norm >= 0, "StepControl.max_norm >= 0", args.max_norm);
  StepState& state = *args.state;
  state.loss = *args.loss;
  state.grad_norm = std::sqrt(*args.norm2);
  state.lr = learning_rate(args.schedule, state.updates);
  bool finite = std::isfinite(state.loss) && std::isfinite(state.grad_norm);
  bool clip = args.max_norm > 0 && state.grad_norm > args.max_norm;
  state.grad_scale = finite && clip ? args.max_norm / state.grad_norm : 1.0;
  state.apply = finite;
  state.step += 1;
  state.updates += finite;
  state.skipped += !finite;
}

}  // namespace xce

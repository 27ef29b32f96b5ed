// The end of a step's control flow, on the device: reads the loss and the gradient's squared norm, decides whether the
// update is applied, computes clip factor and learning rate, and advances the counters. Everything a step changes is in
// StepState.
#pragma once

#include <cmath>
#include <cstdint>
#include <numbers>

#include "kernels/base/exec.h"
#include "kernels/base/host_device.h"

namespace xce {

// One per run, in device memory; part of the checkpoint.
struct StepState {
  int64_t step = 0;       // attempted steps: the data cursor
  int64_t updates = 0;    // applied updates: Adam's t and the schedule's position
  int64_t skipped = 0;    // steps whose loss or norm was not finite
  double lr = 0;          // of the last attempted step
  double grad_scale = 0;  // the clip factor of the last attempted step, in (0, 1]
  double grad_norm = 0;   // before clipping
  double loss = 0;
  int32_t apply = 0;  // 1: AdamW updates in this step; 0: it must leave every bit as it was
  int32_t pad = 0;
};

enum class ScheduleKind : int32_t { kConstant = 0, kLinear = 1, kCosine = 2, kWsd = 3 };

// Learning rate of update u (0-based) of total: warm-up rises linearly, lr * (u + 1) / warmup for u < warmup; then
//   constant: lr;  linear: from lr to min_lr at total;  cosine: half a cosine from lr to min_lr at total;
//   wsd (warm-up, stable, decay): lr until total - decay, then linear to min_lr at total.  Past total: min_lr
//   (constant: lr).
struct Schedule {
  ScheduleKind kind = ScheduleKind::kCosine;
  double lr = 1e-3, min_lr = 0;
  int64_t warmup = 0, decay = 0, total = 1;
};
XCE_HOST_DEVICE inline double learning_rate(const Schedule& s, int64_t update) {
  if (update < s.warmup) return s.lr * static_cast<double>(update + 1) / static_cast<double>(s.warmup);
  if (s.kind == ScheduleKind::kConstant) return s.lr;
  int64_t begin = s.warmup;
  if (s.kind == ScheduleKind::kWsd && s.total - s.decay > begin) begin = s.total - s.decay;
  if (update < begin) return s.lr;
  if (update >= s.total) return s.min_lr;
  double done = static_cast<double>(update - begin) / static_cast<double>(s.total - begin);
  double left = s.kind == ScheduleKind::kCosine ? 0.5 * (1 + std::cos(std::numbers::pi * done)) : 1 - done;
  return s.min_lr + (s.lr - s.min_lr) * left;
}

struct StepControl {
  const double* loss;   // () the step's mean loss
  const double* norm2;  // () squared norm of the whole gradient
  StepState* state;     // () in and out
  Schedule schedule;
  double max_norm = 0;  // clip the norm to this; 0: no clipping
};

// What a launch does, on either device: a step counts as applied when its loss and its gradient norm are finite.
XCE_HOST_DEVICE inline void advance(const StepControl& args) {
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

void launch(const CpuExec& exec, const StepControl& args);
void launch(const CudaExec& exec, const StepControl& args);

// Error(kRuntime) that names the field at fault; both launches begin with it.
void check_args(const StepControl& args);

}  // namespace xce

// The step's arithmetic is the header's; here it runs on the calling thread.
#include "kernels/base/check.h"
#include "kernels/step_control.h"

namespace xce {

void check_args(const StepControl& args) {
  XCE_CHECK(args.loss && args.norm2 && args.state, "StepControl.loss, .norm2 and .state not null", "null");
  XCE_CHECK(args.schedule.warmup >= 0, "StepControl.schedule.warmup >= 0", args.schedule.warmup);
  XCE_CHECK(args.schedule.decay >= 0, "StepControl.schedule.decay >= 0", args.schedule.decay);
  XCE_CHECK(args.max_norm >= 0, "StepControl.max_norm >= 0", args.max_norm);
}

void launch(const CpuExec&, const StepControl& args) {
  check_args(args);
  advance(args);
}

}  // namespace xce

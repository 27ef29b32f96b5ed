// Brings the present step's tokens out of the slot that a copy filled beside the steps before: out = slots[state->step
// mod count].
#pragma once

#include <cstdint>

#include "kernels/base/exec.h"
#include "kernels/step_control.h"

namespace xce {

struct TakeSlot {
  const int32_t* slots;    // (count, n)
  const StepState* state;  // () its step >= 0 chooses the slot
  int32_t* out;            // (n) out
  int64_t n;
  int64_t count;  // >= 1
};

void launch(const CpuExec& exec, const TakeSlot& args);
void launch(const CudaExec& exec, const TakeSlot& args);

// Error(kRuntime) that names the field at fault; both launches begin with it.
void check_args(const TakeSlot& args);

}  // namespace xce

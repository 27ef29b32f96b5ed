// One thread: the step's arithmetic is the header's.
#include "kernels/base/cuda_check.h"
#include "kernels/base/cuda_exec.h"
#include "kernels/step_control.h"

namespace xce {
namespace {

__global__ void control(StepControl args) {
  advance(args);
}

}  // namespace

void launch(const CudaExec& exec, const StepControl& args) {
  check_args(args);
  control<<<1, 1, 0, exec.stream>>>(args);
  cuda::check_launch("StepControl");
}

}  // namespace xce

#include "kernels/base/cuda_check.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/take_slot.h"

namespace xce {
namespace {

__global__ void take(TakeSlot args) {
  const int32_t* slot = args.slots + args.state->step % args.count * args.n;
  const int64_t threads = gridDim.x * static_cast<int64_t>(blockDim.x);
  for (int64_t i = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x; i < args.n; i += threads)
    args.out[i] = slot[i];
}

}  // namespace

void launch(const CudaExec& exec, const TakeSlot& args) {
  check_args(args);
  if (args.n == 0) return;
  take<<<cuda::grid_for(exec, args.n), cuda::kThreads, 0, exec.stream>>>(args);
  cuda::check_launch("TakeSlot");
}

}  // namespace xce

#include "tools/bench_kernels/device.h"

namespace xce::bench {

std::unique_ptr<Device> make_cuda_device() {
  throw Error(ErrorCode::kUsage, "--device cuda needs a build with CUDA (cmake --preset cuda)");
}

}  // namespace xce::bench

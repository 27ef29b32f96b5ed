#include "tools/bench_loss/device.h"

namespace xce::bench {

std::unique_ptr<LossDevice> make_cuda_loss_device() {
  throw Error(ErrorCode::kUsage, "--device cuda needs a build with CUDA (cmake --preset cuda)");
}

}  // namespace xce::bench

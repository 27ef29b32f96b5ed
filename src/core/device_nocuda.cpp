// A build without CUDA: GPUs are refused with what would help.
#include "kernels/base/check.h"
#include "src/core/device.h"

namespace xce {
namespace {

[[noreturn]] void refuse() {
  throw Error(ErrorCode::kUsage,
              "this program was built without CUDA; a GPU needs a build with it: cmake --preset cuda && cmake --build "
              "--preset cuda, then build/cuda/bin/xce-train (configs/demo-cpu.yaml trains without a GPU)");
}

}  // namespace

bool cuda_is_built() {
  return false;
}
int cuda_device_count() {
  return 0;
}
std::unique_ptr<Device> make_cuda_device(const CudaDeviceOptions&) {
  refuse();
}
std::unique_ptr<Device> make_planning_device(const CudaDeviceOptions&) {
  refuse();
}

}  // namespace xce

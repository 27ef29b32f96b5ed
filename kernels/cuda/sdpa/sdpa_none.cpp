// A build without cuDNN.
#include "kernels/base/check.h"
#include "kernels/cuda/sdpa/sdpa.h"

namespace xce::cuda {

struct SdpaPlans::State {};

SdpaPlans::SdpaPlans() = default;
SdpaPlans::~SdpaPlans() = default;
SdpaPlans::State& SdpaPlans::state() {
  throw Error(ErrorCode::kRuntime, "this build has no cuDNN (XCE_WITH_CUDNN)");
}

bool sdpa_takes(const CudaExec&, const Sdpa&) {
  return false;
}
size_t sdpa_workspace_bytes(const CudaExec&, const Sdpa&) {
  return 0;
}
void sdpa(const CudaExec& exec, const Sdpa&) {
  exec.sdpa_plans->state();
}

}  // namespace xce::cuda

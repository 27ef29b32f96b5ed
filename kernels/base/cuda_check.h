// Turns CUDA's status into an Error that names the call. For CUDA sources alone.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/base/check.h"

namespace xce::cuda {

inline void check(cudaError_t status, const char* call) {
  if (status == cudaSuccess) return;
  throw Error(ErrorCode::kRuntime, str(call, ": ", cudaGetErrorName(status), ", ", cudaGetErrorString(status)));
}
// After each kernel: a bad launch configuration, or the error of something launched before.
inline void check_launch(const char* kernel) {
  check(cudaGetLastError(), kernel);
}

}  // namespace xce::cuda

#define XCE_CUDA_CHECK(call) ::xce::cuda::check((call), #call)

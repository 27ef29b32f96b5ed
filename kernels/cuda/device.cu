// The stream, the device's facts, and the plans of GEMMs and attention behind a CudaExec.
#include "kernels/base/cuda_check.h"
#include "kernels/base/cuda_exec.h"
#include "kernels/cuda/gemm.cuh"
#include "kernels/cuda/sdpa/sdpa.h"

namespace xce {
namespace {

int attribute(cudaDeviceAttr which, int index) {
  int value = 0;
  XCE_CUDA_CHECK(cudaDeviceGetAttribute(&value, which, index));
  return value;
}

struct Stream {
  cudaStream_t handle = nullptr;
  Stream() { XCE_CUDA_CHECK(cudaStreamCreateWithFlags(&handle, cudaStreamNonBlocking)); }
  ~Stream() { cudaStreamDestroy(handle); }
  Stream(const Stream&) = delete;
};

}  // namespace

struct CudaDevice::State {
  Stream stream;
  cuda::GemmPlans gemm_plans;
  cuda::SdpaPlans sdpa_plans;
  int index, sm_count, cc_major, cc_minor;
  explicit State(int index)
      : index(index),
        sm_count(attribute(cudaDevAttrMultiProcessorCount, index)),
        cc_major(attribute(cudaDevAttrComputeCapabilityMajor, index)),
        cc_minor(attribute(cudaDevAttrComputeCapabilityMinor, index)) {}
};

int CudaDevice::count() {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) == cudaSuccess) return devices;
  cudaGetLastError();  // no driver is an answer, not an error that a later check_launch should report
  return 0;
}

std::string CudaDevice::why_none() {
  int devices = 0, driver = 0, runtime = 0;
  const cudaError_t status = cudaGetDeviceCount(&devices);
  cudaGetLastError();
  cudaDriverGetVersion(&driver);
  cudaRuntimeGetVersion(&runtime);
  if (driver == 0) return "no driver is installed";
  return str(cudaGetErrorString(status), " (the driver is for CUDA ", driver / 1000, ".", driver % 1000 / 10,
             ", this program was built with ", runtime / 1000, ".", runtime % 1000 / 10, ")");
}

CudaDevice::CudaDevice(int index) {
  XCE_CHECK(index >= 0 && index < count(), str("a CUDA device below ", count()), index);
  XCE_CUDA_CHECK(cudaSetDevice(index));
  state_ = std::make_unique<State>(index);
}

CudaDevice::~CudaDevice() = default;

CudaExec CudaDevice::exec() const {
  const State& s = *state_;
  return {s.stream.handle, &state_->gemm_plans, s.index, s.sm_count, s.cc_major, s.cc_minor, &state_->sdpa_plans};
}

CudaExec CudaDevice::planning_exec() {
  return {.stream = nullptr, .gemm_plans = nullptr, .device = -1, .sm_count = 132, .cc_major = 9, .cc_minor = 0};
}

void CudaDevice::synchronize() const {
  XCE_CUDA_CHECK(cudaStreamSynchronize(state_->stream.handle));
}

}  // namespace xce

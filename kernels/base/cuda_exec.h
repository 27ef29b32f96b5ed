// The CUDA device as ops see it. Plain C++: nothing here needs CUDA installed; the implementation is
// kernels/cuda/device.cu.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

struct CUstream_st;  // cudaStream_t points to it

namespace xce {

namespace cuda {
class GemmPlans;
class SdpaPlans;
}  // namespace cuda

// Enqueues an op on `stream` and returns at once. Cheap to copy; borrowed from a CudaDevice, which has to outlive it.
// Every launch may be captured into a graph in global mode once the same call has run eagerly (that loads the kernels
// and chooses the GEMM's algorithm); the graph must not outlive the CudaDevice.
struct CudaExec {
  CUstream_st* stream;
  cuda::GemmPlans* gemm_plans;  // cuBLASLt's handle, the algorithm of each shape and their scratch
  int device;
  int sm_count;
  int cc_major, cc_minor;                 // compute capability
  cuda::SdpaPlans* sdpa_plans = nullptr;  // cuDNN's handle and its plan for each shape of attention
  // false: attention by our own kernels also where cuDNN's would be taken (attention_kernels in kernels/attention.h)
  bool use_cudnn = true;
  // false: sums may be added in an order that changes from run to run, where that is faster (cuDNN's attention
  // backward)
  bool deterministic = true;
};

// A device with one stream and what the ops on that stream share. GEMM scratch belongs to the stream's order: work that
// is to run concurrently needs a CudaDevice of its own.
class CudaDevice {
 public:
  explicit CudaDevice(
      int index);  // makes the device current for the calling thread; Error(kRuntime) when there is none
  ~CudaDevice();
  CudaDevice(const CudaDevice&) = delete;
  CudaDevice& operator=(const CudaDevice&) = delete;

  static int count();                                        // usable devices
  static std::string why_none();                             // what CUDA says where count() is 0
  static constexpr size_t kScratchBytes = size_t{32} << 20;  // of the GEMMs; cuBLAS's own default on sm_90
  // What an H200's exec answers in workspace_bytes; nothing can be launched on it.
  static CudaExec planning_exec();
  CudaExec exec() const;
  void synchronize() const;  // waits for the stream; Error(kRuntime) with what went wrong there

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace xce

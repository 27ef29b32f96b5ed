// A GPU: one stream for work, one for uploads, events as marks, graphs as recordings.
#include <cuda_runtime_api.h>

#include <cctype>
#include <string>

#include "kernels/base/cuda_check.h"
#include "kernels/base/cuda_exec.h"
#include "kernels/cuda/gemm_plans.h"
#include "src/core/device.h"

namespace xce {
namespace {

class Event final : public Mark {
 public:
  explicit Event(cudaStream_t stream) {
    XCE_CUDA_CHECK(cudaEventCreate(&event_));
    XCE_CUDA_CHECK(cudaEventRecord(event_, stream));
  }
  ~Event() override { cudaEventDestroy(event_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  bool reached() const override {
    cudaError_t status = cudaEventQuery(event_);
    if (status == cudaErrorNotReady) {
      cudaGetLastError();  // an answer, not an error that a later check_launch should report
      return false;
    }
    cuda::check(status, "cudaEventQuery");
    return true;
  }
  void wait() const override { XCE_CUDA_CHECK(cudaEventSynchronize(event_)); }
  double ms_since(const Mark& earlier) const override {
    float ms = 0;
    XCE_CUDA_CHECK(cudaEventElapsedTime(&ms, dynamic_cast<const Event&>(earlier).event_, event_));
    return static_cast<double>(ms);
  }
  cudaEvent_t get() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

// On the device, or pinned on the host: both at addresses that kernels reach.
class CudaMemory final : public Memory {
 public:
  CudaMemory(cudaStream_t stream, bool on_host) : stream_(stream), on_host_(on_host) {}

  void* allocate(size_t bytes) override {
    void* data = nullptr;
    cudaError_t status = on_host_ ? cudaMallocHost(&data, bytes) : cudaMalloc(&data, bytes);
    if (status == cudaErrorMemoryAllocation) {
      cudaGetLastError();
      size_t free = 0, total = 0;
      cudaMemGetInfo(&free, &total);
      throw Error(ErrorCode::kRuntime, on_host_ ? str("out of memory: could not pin ", bytes, " bytes of the host's")
                                                : str("out of GPU memory: could not allocate ", bytes, " bytes, ", free,
                                                      " of ", total, " are free"));
    }
    cuda::check(status, "cudaMalloc");
    set_bytes(data, 0, bytes);
    return data;
  }
  void release(void* data) noexcept override { on_host_ ? cudaFreeHost(data) : cudaFree(data); }
  void copy_in(void* to, const void* from, size_t bytes) override { copy(to, from, bytes); }
  void copy_out(void* to, const void* from, size_t bytes) override { copy(to, from, bytes); }
  void set_bytes(void* at, int value, size_t bytes) override {
    if (bytes == 0) return;
    XCE_CUDA_CHECK(cudaMemsetAsync(at, value, bytes, stream_));
    XCE_CUDA_CHECK(cudaStreamSynchronize(stream_));
  }
  bool host_readable() const override { return on_host_; }

 private:
  void copy(void* to, const void* from, size_t bytes) {
    if (bytes == 0) return;
    XCE_CUDA_CHECK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream_));
    XCE_CUDA_CHECK(cudaStreamSynchronize(stream_));
  }
  cudaStream_t stream_;
  bool on_host_;
};

class Graph final : public Recording {
 public:
  Graph(cudaStream_t stream, const std::function<void()>& work) : stream_(stream) {
    cudaGraph_t graph = nullptr;
    XCE_CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    try {
      work();
    } catch (...) {
      cudaStreamEndCapture(stream, &graph);  // the capture ends with its cause, not with this call's complaint
      if (graph) cudaGraphDestroy(graph);
      cudaGetLastError();
      throw;
    }
    XCE_CUDA_CHECK(cudaStreamEndCapture(stream, &graph));
    cudaError_t status = cudaGraphInstantiate(&executable_, graph, 0);
    cudaGraphDestroy(graph);
    cuda::check(status, "cudaGraphInstantiate");
    XCE_CUDA_CHECK(cudaGraphUpload(executable_, stream));
  }
  ~Graph() override { cudaGraphExecDestroy(executable_); }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  void replay() override { XCE_CUDA_CHECK(cudaGraphLaunch(executable_, stream_)); }

 private:
  cudaStream_t stream_;
  cudaGraphExec_t executable_ = nullptr;
};

struct UploadStream {
  cudaStream_t handle = nullptr;
  UploadStream() { XCE_CUDA_CHECK(cudaStreamCreateWithFlags(&handle, cudaStreamNonBlocking)); }
  ~UploadStream() { cudaStreamDestroy(handle); }
  UploadStream(const UploadStream&) = delete;
};

size_t free_bytes() {
  size_t free = 0, total = 0;
  XCE_CUDA_CHECK(cudaMemGetInfo(&free, &total));
  return free;
}

// Free memory once the context exists and before anything else was allocated.
size_t free_bytes_with_context(int index) {
  XCE_CHECK(index >= 0 && index < CudaDevice::count(), str("a CUDA device below ", CudaDevice::count()), index);
  XCE_CUDA_CHECK(cudaSetDevice(index));
  XCE_CUDA_CHECK(cudaFree(nullptr));
  return free_bytes();
}

// Dense bf16 products with fp32 sums, by NVIDIA's data sheets; 0 for a card that is not listed.
double peak_bf16_flops(const std::string& name) {
  struct Card {
    const char* name;
    double flops;
  };
  for (const Card& card : {Card{"H100 PCIe", 756e12}, Card{"H100 NVL", 835e12}, Card{"H100", 989.4e12},
                           Card{"GH200", 989.4e12}, Card{"H200", 989.4e12}, Card{"A100", 312e12}}) {
    const size_t at = name.find(card.name), end = at + std::string(card.name).size();
    if (at != std::string::npos && (end == name.size() || !std::isalnum(static_cast<unsigned char>(name[end]))))
      return card.flops;
  }
  return 0;
}

CudaExec with_options(CudaExec exec, const CudaDeviceOptions& options) {
  exec.deterministic = options.deterministic;
  return exec;
}

class GpuDevice final : public Device {
 public:
  explicit GpuDevice(const CudaDeviceOptions& options)
      : free_at_start_(free_bytes_with_context(options.index)),
        cuda_(options.index),
        exec_(with_options(cuda_.exec(), options)),
        memory_(cuda_.exec().stream, options.host_arrays),
        staging_(cuda_.exec().stream, true) {
    cudaDeviceProp properties{};
    XCE_CUDA_CHECK(cudaGetDeviceProperties(&properties, options.index));
    name_ = properties.name;
    total_bytes_ = properties.totalGlobalMem;
  }

  const Exec& exec() const override { return exec_; }
  Memory& memory() override { return memory_; }
  Memory& staging() override { return staging_; }
  bool asynchronous() const override { return true; }
  std::string describe() const override {
    const CudaExec exec = cuda_.exec();
    return str(name_, " (sm_", exec.cc_major, exec.cc_minor, ", ", exec.sm_count, " SMs, ", total_bytes_ >> 30,
               " GiB)");
  }
  double peak_flops(DType dtype) const override { return dtype == DType::kBf16 ? peak_bf16_flops(name_) : 0; }
  std::string attention_kernels(const AttentionForward& args) const override {
    return xce::attention_kernels(std::get<CudaExec>(exec_), args);
  }
  size_t used_bytes() const override {
    const size_t now = free_bytes();
    return free_at_start_ > now ? free_at_start_ - now : 0;
  }
  size_t fixed_bytes() const override { return CudaDevice::kScratchBytes; }

  std::unique_ptr<Recording> record(std::function<void()> work) override {
    return std::make_unique<Graph>(stream(), work);
  }
  void upload(void* to, const void* from, size_t bytes) override {
    XCE_CUDA_CHECK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, uploads_.handle));
    Event done(uploads_.handle);
    XCE_CUDA_CHECK(cudaStreamWaitEvent(stream(), done.get()));
  }
  std::unique_ptr<Mark> download(void* to, const void* from, size_t bytes) override {
    XCE_CUDA_CHECK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream()));
    return std::make_unique<Event>(stream());
  }
  std::unique_ptr<Mark> mark() override { return std::make_unique<Event>(stream()); }
  void synchronize() override { cuda_.synchronize(); }

  void set_tuning(bool on) override { on ? start_gemm_tuning(cuda_.exec()) : stop_gemm_tuning(cuda_.exec()); }
  std::string plans_text() const override { return gemm_plans_text(cuda_.exec()); }
  std::string raced_plans_text() const override { return gemm_plans_text(cuda_.exec(), GemmChoices::kRaced); }
  std::string load_plans(const std::string& text, const std::string& source) override {
    return load_gemm_plans_text(cuda_.exec(), text, source);
  }
  std::string plans_summary() const override {
    const GemmPlanCounts counts = gemm_plan_counts(cuda_.exec());
    return str("products    ", counts.raced + counts.loaded + counts.first_answers, " shapes: algorithms of ",
               counts.raced, " raced, of ", counts.loaded, " known from before, of ", counts.first_answers,
               " cuBLASLt's first answer");
  }

 private:
  cudaStream_t stream() const { return cuda_.exec().stream; }

  size_t free_at_start_;
  CudaDevice cuda_;
  Exec exec_;
  UploadStream uploads_;
  CudaMemory memory_, staging_;
  std::string name_;
  size_t total_bytes_ = 0;
};

class PlanningDevice final : public Device {
 public:
  explicit PlanningDevice(const CudaDeviceOptions& options)
      : exec_(with_options(CudaDevice::planning_exec(), options)) {}
  const Exec& exec() const override { return exec_; }
  Memory& memory() override { refuse(); }
  Memory& staging() override { refuse(); }
  bool asynchronous() const override { return true; }
  std::string describe() const override { return "planned for an NVIDIA H200: there is no GPU here"; }
  double peak_flops(DType dtype) const override { return dtype == DType::kBf16 ? peak_bf16_flops("H200") : 0; }
  std::string attention_kernels(const AttentionForward& args) const override {
    return xce::attention_kernels(std::get<CudaExec>(exec_), args);
  }
  size_t used_bytes() const override { return 0; }
  size_t fixed_bytes() const override { return CudaDevice::kScratchBytes; }
  std::unique_ptr<Recording> record(std::function<void()>) override { refuse(); }
  void upload(void*, const void*, size_t) override { refuse(); }
  std::unique_ptr<Mark> download(void*, const void*, size_t) override { refuse(); }
  std::unique_ptr<Mark> mark() override { refuse(); }
  void synchronize() override {}

 private:
  [[noreturn]] static void refuse() {
    throw Error(ErrorCode::kRuntime, "expected a GPU, got a device that only plans");
  }
  Exec exec_;
};

}  // namespace

bool cuda_is_built() {
  return true;
}
int cuda_device_count() {
  return CudaDevice::count();
}
std::unique_ptr<Device> make_cuda_device(const CudaDeviceOptions& options) {
  if (CudaDevice::count() == 0)
    throw Error(ErrorCode::kUsage,
                str("no NVIDIA GPU can be used here: ", CudaDevice::why_none(),
                    "; configs/demo-cpu.yaml trains without one, and run.device=cpu (with --sample: --device cpu) "
                    "computes any model on the CPU"));
  return std::make_unique<GpuDevice>(options);
}
std::unique_ptr<Device> make_planning_device(const CudaDeviceOptions& options) {
  return std::make_unique<PlanningDevice>(options);
}

}  // namespace xce

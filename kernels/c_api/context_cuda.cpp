#include <cuda_runtime_api.h>

#include "kernels/base/cuda_check.h"
#include "kernels/c_api/context.h"
#include "kernels/cuda/gemm_plans.h"

namespace xce::c_api {
namespace {

int current_device() {
  int device = 0;
  XCE_CUDA_CHECK(cudaGetDevice(&device));
  return device;
}

// Freed in this order: scratch, then handles and stream.
struct Device {
  CudaDevice device;
  unsigned char* scratch = nullptr;
  explicit Device(int index) : device(index) {
    XCE_CUDA_CHECK(cudaMalloc(reinterpret_cast<void**>(&scratch), kScratchBytes));
    XCE_CUDA_CHECK(cudaMemset(scratch, 0xFF, sizeof(int64_t)));
    XCE_CUDA_CHECK(cudaDeviceSynchronize());
  }
  ~Device() { cudaFree(scratch); }
  Device(const Device&) = delete;
};

class RestoreDevice {
 public:
  RestoreDevice() : device_(current_device()) {}
  ~RestoreDevice() { cudaSetDevice(device_); }
  RestoreDevice(const RestoreDevice&) = delete;

 private:
  int device_;
};

}  // namespace

int cuda_device_count() {
  return CudaDevice::count();
}

std::unique_ptr<xce_context> create_cuda(int index) {
  const int count = cuda_device_count();
  if (index < 0 || index >= count)
    throw Failure(XCE_ERROR_NO_DEVICE, str("expected device in 0 .. ", count, " - 1, got ", index));
  RestoreDevice restore;
  auto device = std::make_shared<Device>(index);
  auto context = std::make_unique<xce_context>();
  context->exec = device->device.exec();
  context->device_index = index;
  context->scratch = device->scratch;
  context->device = std::move(device);
  set_stream(*context, nullptr);
  return context;
}

void set_stream(xce_context& context, void* stream) {
  std::get<CudaExec>(context.exec).stream = static_cast<CUstream_st*>(stream);
}

std::string tuning_text(const xce_context& context) {
  return context.on_cpu() ? "" : gemm_plans_text(std::get<CudaExec>(context.exec));
}
void load_tuning_text(const xce_context& context, const std::string& text) {
  if (context.on_cpu()) throw Failure(XCE_ERROR_UNSUPPORTED, "a CPU context has no tuning");
  std::string why;
  try {
    why = load_gemm_plans_text(std::get<CudaExec>(context.exec), text, "text");
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kCorrupt) throw Failure(XCE_ERROR_INVALID_ARGUMENT, error.what());
    throw;
  }
  if (!why.empty()) throw Failure(XCE_ERROR_UNSUPPORTED, why);
}

TuningScope::TuningScope(const xce_context& context) : context_(context) {
  if (!context.on_cpu() && context.tunes) start_gemm_tuning(std::get<CudaExec>(context.exec));
}
TuningScope::~TuningScope() {
  if (!context_.on_cpu()) stop_gemm_tuning(std::get<CudaExec>(context_.exec));
}

DeviceScope::DeviceScope(const xce_context& context) {
  if (context.on_cpu()) return;
  const int now = current_device();
  if (now == context.device_index) return;
  XCE_CUDA_CHECK(cudaSetDevice(context.device_index));
  before_ = now;
}
DeviceScope::~DeviceScope() {
  if (before_ >= 0) cudaSetDevice(before_);
}

}  // namespace xce::c_api

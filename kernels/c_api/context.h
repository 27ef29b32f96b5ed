// What an xce_context holds. The part that needs CUDA is behind a few functions; CMake chooses context_cuda.cpp or
// context_nocuda.cpp.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "kernels/base/exec.h"
#include "kernels/c_api/failure.h"
#include "kernels/cpu/parallel.h"

struct xce_context {
  xce::Exec exec;
  std::unique_ptr<xce::ThreadPool> pool;  // of a CPU context
  // Of a CUDA context: the device with its handles, and device memory of kScratchBytes, the first eight of them 0xFF:
  // label -1 in either type.
  std::shared_ptr<void> device;
  int device_index = -1;
  unsigned char* scratch = nullptr;
  bool tunes = true;  // prepare races the algorithms of matrix products

  bool on_cpu() const { return device_index < 0; }
};

namespace xce::c_api {

constexpr size_t kScratchBytes = 512;

std::unique_ptr<xce_context> create_cuda(int index);
int cuda_device_count();
void set_stream(xce_context& context, void* stream);
std::string tuning_text(const xce_context& context);  // "" of a CPU context
void load_tuning_text(const xce_context& context, const std::string& text);

// While it lives the context's device is the calling thread's.
class DeviceScope {
 public:
  explicit DeviceScope(const xce_context& context);
  ~DeviceScope();
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

 private:
  int before_ = -1;
};

// While it lives, launches on a CUDA context that tunes race their matrix products; all they write is scratch then.
class TuningScope {
 public:
  explicit TuningScope(const xce_context& context);
  ~TuningScope();
  TuningScope(const TuningScope&) = delete;
  TuningScope& operator=(const TuningScope&) = delete;

 private:
  const xce_context& context_;
};

// A call on a context: null is refused, its device is current.
template <class F>
xce_status call(const char* function, xce_context* context, F&& f) noexcept {
  return guarded(function, [&] {
    require(context != nullptr, "context", "null");
    DeviceScope scope(*context);
    f();
  });
}

}  // namespace xce::c_api

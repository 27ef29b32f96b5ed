#include "kernels/c_api/context.h"

#include <algorithm>
#include <cstring>

using namespace xce::c_api;
using xce::str;

namespace {

constexpr int32_t kMaxThreads = 512;  // what cross-entropy's sums per thread have room for

std::unique_ptr<xce_context> create_cpu(int32_t threads) {
  require(threads >= 0 && threads <= kMaxThreads, "threads in 0 .. 512", threads);
  auto context = std::make_unique<xce_context>();
  try {
    context->pool =
        std::make_unique<xce::ThreadPool>(threads ? threads : std::min(xce::hardware_threads(), kMaxThreads));
  } catch (const xce::Error& error) {
    throw Failure(XCE_ERROR_OUT_OF_MEMORY, error.what());
  }
  context->exec = xce::CpuExec{context->pool.get()};
  return context;
}

template <class Create>
xce_status create(const char* function, xce_context** context, Create&& create_one) {
  return guarded(function, [&] {
    require(context != nullptr, "context", "null");
    *context = nullptr;
    *context = create_one().release();
  });
}

}  // namespace

extern "C" {

xce_status xce_context_create_cpu(int32_t threads, xce_context** context) {
  return create(__func__, context, [&] { return create_cpu(threads); });
}

xce_status xce_context_create_cuda(int32_t device, xce_context** context) {
  return create(__func__, context, [&] { return create_cuda(device); });
}

int32_t xce_cuda_device_count(void) {
  int32_t count = 0;
  guarded(__func__, [&] { count = cuda_device_count(); });
  return count;
}

xce_status xce_context_set_stream(xce_context* context, void* stream) {
  return guarded(__func__, [&] {
    require(context != nullptr, "context", "null");
    require(!context->on_cpu() || stream == nullptr, "stream null on a CPU context", stream);
    if (!context->on_cpu()) set_stream(*context, stream);
  });
}

xce_status xce_context_set_tuning(xce_context* context, int32_t on) {
  return guarded(__func__, [&] {
    require(context != nullptr, "context", "null");
    require(on == 0 || on == 1, "on 0 or 1", on);
    context->tunes = on != 0;
  });
}

xce_status xce_context_tuning_text(xce_context* context, char* text, size_t capacity, size_t* bytes) {
  return call(__func__, context, [&] {
    require(bytes != nullptr, "bytes", "null");
    require(text != nullptr || capacity == 0, "text", "null");
    const std::string all = tuning_text(*context);
    if (text) {
      require(capacity > all.size(), str("capacity of at least ", all.size() + 1).c_str(), capacity);
      std::memcpy(text, all.c_str(), all.size() + 1);
    }
    *bytes = all.size() + 1;
  });
}

xce_status xce_context_load_tuning_text(xce_context* context, const char* text) {
  return call(__func__, context, [&] {
    require(text != nullptr, "text", "null");
    load_tuning_text(*context, text);
  });
}

void xce_context_destroy(xce_context* context) {
  if (!context) return;
  guarded(__func__, [&] {
    DeviceScope scope(*context);
    delete context;
  });
}
}

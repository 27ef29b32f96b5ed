#include "kernels/c_api/context.h"

using namespace xce::c_api;

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

void xce_context_destroy(xce_context* context) {
  if (!context) return;
  guarded(__func__, [&] {
    DeviceScope scope(*context);
    delete context;
  });
}
}

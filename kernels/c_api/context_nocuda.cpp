#include "kernels/c_api/context.h"

namespace xce::c_api {

std::unique_ptr<xce_context> create_cuda(int) {
  throw Failure(XCE_ERROR_UNSUPPORTED, "this library was built without CUDA");
}
int cuda_device_count() {
  return 0;
}
void set_stream(xce_context&, void*) {}
std::string tuning_text(const xce_context&) {
  return "";
}
void load_tuning_text(const xce_context&, const std::string&) {
  throw Failure(XCE_ERROR_UNSUPPORTED, "this library was built without CUDA");
}

DeviceScope::DeviceScope(const xce_context&) {}
DeviceScope::~DeviceScope() = default;
TuningScope::TuningScope(const xce_context& context) : context_(context) {}
TuningScope::~TuningScope() = default;

}  // namespace xce::c_api

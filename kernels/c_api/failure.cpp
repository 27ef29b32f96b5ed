#include "kernels/c_api/failure.h"

#include <algorithm>
#include <cstring>

#define XCE_TEXT_OF(number) #number
#define XCE_TEXT(number) XCE_TEXT_OF(number)

namespace xce::c_api {
namespace {

constexpr size_t kMessageBytes = 512;
thread_local char last_error[kMessageBytes] = "";  // no allocation: it also has to tell of one that failed

void append(size_t& used, const char* text) {
  size_t n = std::min(std::strlen(text), kMessageBytes - 1 - used);
  std::memcpy(last_error + used, text, n);
  used += n;
  last_error[used] = '\0';
}

}  // namespace

xce_status fail(xce_status status, const char* function, const char* message) noexcept {
  size_t used = 0;
  append(used, function);
  append(used, ": ");
  append(used, message);
  return status;
}

}  // namespace xce::c_api

extern "C" {

const char* xce_version(void) {
  return XCE_TEXT(XCE_VERSION_MAJOR) "." XCE_TEXT(XCE_VERSION_MINOR) "." XCE_TEXT(XCE_VERSION_PATCH);
}

const char* xce_status_string(int32_t status) {
  switch (status) {
    case XCE_OK:
      return "ok";
    case XCE_ERROR_INVALID_ARGUMENT:
      return "invalid argument";
    case XCE_ERROR_UNSUPPORTED:
      return "unsupported";
    case XCE_ERROR_WORKSPACE:
      return "workspace";
    case XCE_ERROR_NO_DEVICE:
      return "no such device";
    case XCE_ERROR_DEVICE:
      return "device error";
    case XCE_ERROR_OUT_OF_MEMORY:
      return "out of memory";
    case XCE_ERROR_INTERNAL:
      return "internal error";
  }
  return "unknown status";
}

const char* xce_last_error(void) {
  return xce::c_api::last_error;
}
}

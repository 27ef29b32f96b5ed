// The border to C: what goes wrong behind it becomes a status and a message of the calling thread. The one place that
// catches exceptions.
#pragma once

#include <exception>
#include <new>
#include <string>

#include "kernels/base/check.h"
#include "kernels/include/xce/xce.h"

namespace xce::c_api {

// A refused call, before anything was done for it.
class Failure : public std::exception {
 public:
  Failure(xce_status status, std::string message) : status(status), message(std::move(message)) {}
  const char* what() const noexcept override { return message.c_str(); }
  xce_status status;
  std::string message;
};

// For expectations that have to be put together, which costs more than the rest of a call's checks: only where it
// fails.
template <class Value>
[[noreturn]] void refuse(const std::string& expectation, const Value& value) {
  throw Failure(XCE_ERROR_INVALID_ARGUMENT, str("expected ", expectation, ", got ", value));
}
template <class Value>
void require(bool condition, const char* expectation, const Value& value) {
  if (!condition) throw Failure(XCE_ERROR_INVALID_ARGUMENT, str("expected ", expectation, ", got ", value));
}
template <class Value>
void require_supported(bool condition, const char* expectation, const Value& value) {
  if (!condition)
    throw Failure(XCE_ERROR_UNSUPPORTED, str("expected ", expectation, ", got ", value, ": not supported"));
}

// Keeps "function: message" for xce_last_error, and returns the status.
xce_status fail(xce_status status, const char* function, const char* message) noexcept;

// Runs f. An Error is what CUDA, cuBLAS or the system refused: arguments were checked before by `require`.
template <class F>
xce_status guarded(const char* function, F&& f) noexcept {
  try {
    f();
    return XCE_OK;
  } catch (const Failure& failure) {
    return fail(failure.status, function, failure.what());
  } catch (const Error& error) {
    return fail(XCE_ERROR_DEVICE, function, error.what());
  } catch (const std::bad_alloc&) {
    return fail(XCE_ERROR_OUT_OF_MEMORY, function, "out of host memory");
  } catch (const std::exception& error) {
    return fail(XCE_ERROR_INTERNAL, function, error.what());
  } catch (...) {
    return fail(XCE_ERROR_INTERNAL, function, "an exception of an unknown type");
  }
}

}  // namespace xce::c_api

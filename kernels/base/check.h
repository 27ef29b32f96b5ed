// Errors of the whole tree: one exception that carries the process exit code, and XCE_CHECK, which names the offending
// value. Libraries throw, never exit or print; the command line maps Error::code() to the exit status.
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>

namespace xce {

// The process exit codes; kRuntime for anything a caller of the library did wrong.
enum class ErrorCode : int { kRuntime = 1, kUsage = 2, kCorrupt = 3, kNonFinite = 4, kCommunication = 5, kDisk = 6 };

class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ErrorCode code() const { return code_; }

 private:
  ErrorCode code_;
};

template <class... Parts>
std::string str(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}

}  // namespace xce

// XCE_CHECK(args.rows >= 0, "RmsNormForward.rows >= 0", args.rows): throws Error(kRuntime) with expectation and value.
#define XCE_CHECK(condition, expectation, value)                                                             \
  do {                                                                                                       \
    if (!(condition))                                                                                        \
      throw ::xce::Error(::xce::ErrorCode::kRuntime, ::xce::str("expected ", expectation, ", got ", value)); \
  } while (0)

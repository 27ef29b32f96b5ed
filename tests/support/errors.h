// Expects an Error with its exit code and the words that a user needs in the message.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "kernels/base/check.h"

namespace xce::test {

inline ::testing::AssertionResult throws_error(ErrorCode code, const std::vector<std::string>& words,
                                               const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    std::string message = error.what();
    if (error.code() != code)
      return ::testing::AssertionFailure() << "exit code " << static_cast<int>(error.code()) << ": " << message;
    for (const std::string& word : words)
      if (message.find(word) == std::string::npos)
        return ::testing::AssertionFailure() << "no '" << word << "' in: " << message;
    return ::testing::AssertionSuccess();
  } catch (const std::exception& other) {
    return ::testing::AssertionFailure() << "not an xce::Error: " << other.what();
  }
  return ::testing::AssertionFailure() << "nothing was thrown";
}

}  // namespace xce::test

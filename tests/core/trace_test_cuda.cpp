#include "src/core/trace.h"

#include <gtest/gtest.h>

#include <stdexcept>

#include "tests/support/nvtx_recorder.h"

namespace xce {
namespace {

TEST(TraceRange, BeginsAndEndsWithItsScope) {
  test::take_nvtx_ranges();
  {
    TraceRange outer("outer");
    for (int i = 0; i < 2; ++i) TraceRange inner("layer " + std::to_string(i));
  }
  EXPECT_EQ(test::take_nvtx_ranges(), "outer( layer 0( ) layer 1( ) ) ");
}

TEST(TraceRange, EndsWhenAnErrorPassesThrough) {
  test::take_nvtx_ranges();
  auto failing = [] {
    TraceRange range("failing");
    throw std::runtime_error("x");
  };
  EXPECT_THROW(failing(), std::runtime_error);
  EXPECT_EQ(test::take_nvtx_ranges(), "failing( ) ");
}

}  // namespace
}  // namespace xce

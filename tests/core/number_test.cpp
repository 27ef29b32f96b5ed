// Numbers as text: strict in, shortest out, the same bits after a round trip.
#include "src/core/number.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>

namespace xce {
namespace {

TEST(NumberTest, ParsesTheWholeTextOrNothing) {
  double d = 0;
  EXPECT_EQ(parse_number("1e-4", &d), NumberText::kOk);
  EXPECT_EQ(d, 1e-4);
  EXPECT_EQ(parse_number("+2.5E3", &d), NumberText::kOk);
  EXPECT_EQ(d, 2500);
  EXPECT_EQ(parse_number("1e999", &d), NumberText::kOverflow);
  for (const char* text : {"", "+", "-", "x", "1x", " 1", "1 ", "0x10", "+-1", "1e", "1.5.2"}) {
    EXPECT_EQ(parse_number(text, &d), NumberText::kMalformed) << text;
  }
  int64_t i = 0;
  EXPECT_EQ(parse_number("-9223372036854775808", &i), NumberText::kOk);
  EXPECT_EQ(i, std::numeric_limits<int64_t>::min());
  EXPECT_EQ(parse_number("9223372036854775808", &i), NumberText::kOverflow);
  EXPECT_EQ(parse_number("1.0", &i), NumberText::kMalformed);
}

TEST(NumberTest, FormatsShortly) {
  EXPECT_EQ(format_double(1.0), "1");
  EXPECT_EQ(format_double(0.1), "0.1");
  EXPECT_EQ(format_double(1e-4), "1e-4");
  EXPECT_EQ(format_double(-4e-3), "-0.004");
  EXPECT_EQ(format_double(1e30), "1e30");
  EXPECT_EQ(format_double(1e-300), "1e-300");
  EXPECT_EQ(format_double(-0.0), "-0");
}

TEST(NumberTest, RoundTripsEveryBit) {
  std::mt19937_64 random(7);
  for (int i = 0; i < 20000; ++i) {
    double value = std::bit_cast<double>(random());
    if (!std::isfinite(value)) continue;
    double again = 0;
    ASSERT_EQ(parse_number(format_double(value), &again), NumberText::kOk);
    ASSERT_EQ(std::bit_cast<uint64_t>(again), std::bit_cast<uint64_t>(value)) << format_double(value);
  }
}

}  // namespace
}  // namespace xce

// Sums, conversions between every pair of dtypes with exact rounding, and fills.
#include "kernels/elementwise.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "tests/support/array.h"
#include "tests/support/compare.h"
#include "tests/support/execs.h"

namespace xce {
namespace {

using test::Array;

const DType kDTypes[] = {DType::kF32, DType::kBf16, DType::kF64};
const int64_t kSizes[] = {0, 1, 7, 31, 127, 1025, 40007};

// The nearest value with `digits` significant binary digits, ties to even: arithmetic of its own, for normal results.
double rounded(double x, int digits) {
  if (x == 0 || !std::isfinite(x)) return x;
  int exponent = std::ilogb(x);
  return std::ldexp(std::nearbyint(std::ldexp(x, digits - 1 - exponent)), exponent - digits + 1);
}
int digits_of(DType dtype) {
  return dtype == DType::kF32 ? 24 : dtype == DType::kBf16 ? 8 : 53;
}

TEST(Elementwise, AddAlsoOntoEitherInput) {
  for (DType dtype : kDTypes)
    for (const Exec& exec : test::all_execs())
      for (int64_t n : kSizes) {
        Array a = Array::normal(dtype, n, 1), b = Array::normal(dtype, n, 2), y(dtype, n);
        run(exec, Add{a.data(), b.data(), y.data(), n, dtype});
        for (int64_t i = 0; i < n; ++i) {
          double sum = dtype == DType::kBf16 ? rounded(a[i] + b[i], 24) : a[i] + b[i];
          ASSERT_EQ(y[i], rounded(sum, digits_of(dtype))) << name_of(dtype) << " " << i;
        }
        EXPECT_TRUE(y.guards_intact());
        Array on_a = a, on_b = b;
        run(exec, Add{on_a.data(), b.data(), on_a.data(), n, dtype});
        run(exec, Add{a.data(), on_b.data(), on_b.data(), n, dtype});
        EXPECT_TRUE(on_a.same_bits(y));
        EXPECT_TRUE(on_b.same_bits(y));
      }
}

TEST(Elementwise, ConvertRoundsToNearestEven) {
  for (DType from : kDTypes)
    for (DType to : kDTypes)
      for (const Exec& exec : test::all_execs())
        for (int64_t n : kSizes) {
          Array x = Array::normal(from, n, 3), y(to, n);
          run(exec, Convert{x.data(), y.data(), n, from, to});
          for (int64_t i = 0; i < n; ++i) ASSERT_EQ(y[i], rounded(x[i], digits_of(to))) << name_of(from) << name_of(to);
          EXPECT_TRUE(y.guards_intact());
          if (from != to) continue;
          Array in_place = x;
          run(exec, Convert{in_place.data(), in_place.data(), n, from, to});
          EXPECT_TRUE(in_place.same_bits(x));
        }
}

// 1 + 2^-8 is a tie of bf16; the values beside it differ from it by less than float resolves.
TEST(Elementwise, ConvertFromFp64RoundsOnce) {
  const double tie = 1 + std::ldexp(1.0, -8), odd_tie = 1 + 3 * std::ldexp(1.0, -8), below = std::ldexp(1.0, -40);
  Array x(DType::kF64, 8), y(DType::kBf16, 8);
  const double values[] = {tie,     tie + below,     tie - below,     -tie - below,
                           odd_tie, odd_tie - below, odd_tie + below, 1e300};
  const double up = 1 + std::ldexp(1.0, -7), two_up = 1 + std::ldexp(1.0, -6);
  const double want[] = {1, up, 1, -up, two_up, up, two_up, std::numeric_limits<double>::infinity()};
  for (int i = 0; i < 8; ++i) x.set(i, values[i]);
  for (const Exec& exec : test::all_execs()) {
    run(exec, Convert{x.data(), y.data(), 8, DType::kF64, DType::kBf16});
    for (int i = 0; i < 8; ++i) EXPECT_EQ(y[i], want[i]) << i;
    y = Array(DType::kBf16, 8);
    for (int i = 0; i < 7; ++i) {
      run(exec, Fill{y.data(), 8, DType::kBf16, values[i]});
      EXPECT_EQ(y[7], want[i]) << i;
    }
  }
}

TEST(Elementwise, ConvertKeepsNanAndInfinity) {
  const double inf = std::numeric_limits<double>::infinity();
  for (DType from : kDTypes)
    for (DType to : kDTypes)
      for (const Exec& exec : test::all_execs()) {
        Array x(from, 3), y = Array::filled(to, 3, 1.0);
        x.set(1, inf), x.set(2, -inf);
        run(exec, Convert{x.data(), y.data(), 3, from, to});
        EXPECT_TRUE(std::isnan(y[0]));
        EXPECT_EQ(y[1], inf);
        EXPECT_EQ(y[2], -inf);
      }
}

TEST(Elementwise, FillWritesTheRoundedValue) {
  for (DType dtype : kDTypes)
    for (const Exec& exec : test::all_execs())
      for (int64_t n : kSizes)
        for (double value : {0.0, -1.23456789012345}) {
          Array y(dtype, n);
          run(exec, Fill{y.data(), n, dtype, value});
          for (int64_t i = 0; i < n; ++i) ASSERT_EQ(y[i], rounded(value, digits_of(dtype)));
          EXPECT_TRUE(y.guards_intact());
        }
}

TEST(Elementwise, RejectsBadArguments) {
  Exec exec = test::cpu_exec(1);
  Array a = Array::normal(DType::kF32, 2, 1);
  EXPECT_THROW(run(exec, Add{a.data(), a.data(), a.data(), -1, DType::kF32}), Error);
  EXPECT_THROW(run(exec, Add{a.data(), nullptr, a.data(), 2, DType::kF32}), Error);
  EXPECT_THROW(run(exec, Convert{a.data(), a.data(), 2, DType::kF32, DType::kBf16}), Error);
  EXPECT_THROW(run(exec, Convert{a.data(), nullptr, 2, DType::kF32, DType::kF32}), Error);
  EXPECT_THROW(run(exec, Fill{nullptr, 2, DType::kF32, 0.0}), Error);
}

}  // namespace
}  // namespace xce

// Philox against the known answers published with Random123, and the distributions by their moments.
#include "src/core/rng.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <string>

namespace xce {
namespace {

using Words = std::array<uint32_t, 4>;

TEST(Philox, KnownAnswers) {
  EXPECT_EQ(philox({0, 0, 0, 0}, {0, 0}), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox({~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}), (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Rng, IsAFunctionOfSeedStreamAndIndex) {
  Rng a(1, "x"), again(1, "x");
  for (uint64_t i : {uint64_t{5}, uint64_t{0}, uint64_t{5}, uint64_t{1} << 40}) {
    EXPECT_EQ(a.bits(i), again.bits(i));
    EXPECT_EQ(a.normal(i), again.normal(i));
    EXPECT_EQ(a.uniform(i), again.uniform(i));
  }
}

TEST(Rng, SeedsStreamsAndIndicesDiffer) {
  std::set<uint64_t> seen;
  int drawn = 0;
  for (uint64_t seed : {uint64_t{0}, uint64_t{1}, uint64_t{1} << 32, ~uint64_t{0}})
    for (const char* stream : {"", "a", "b", "ab", "ba"})
      for (uint64_t index : {uint64_t{0}, uint64_t{1}, uint64_t{1} << 32, ~uint64_t{0}}) {
        seen.insert(Rng(seed, stream).bits(index));
        ++drawn;
      }
  EXPECT_EQ(static_cast<int>(seen.size()), drawn);
}

TEST(Rng, UniformMoments) {
  Rng rng(42, "uniform");
  const int n = 200000;
  double sum = 0, square = 0;
  for (int i = 0; i < n; ++i) {
    double u = rng.uniform(static_cast<uint64_t>(i));
    ASSERT_GT(u, 0);
    ASSERT_LT(u, 1);
    sum += u;
    square += u * u;
  }
  EXPECT_NEAR(sum / n, 0.5, 5 * std::sqrt(1.0 / 12 / n));
  EXPECT_NEAR(square / n, 1.0 / 3, 5 * std::sqrt(4.0 / 45 / n));
}

TEST(Rng, NormalMomentsTailsAndIndependenceOfNeighbours) {
  Rng rng(42, "normal");
  const int n = 200000;
  double m1 = 0, m2 = 0, m3 = 0, m4 = 0, neighbours = 0, before = rng.normal(n);
  int beyond_two = 0;
  for (int i = 0; i < n; ++i) {
    double x = rng.normal(static_cast<uint64_t>(i));
    m1 += x;
    m2 += x * x;
    m3 += x * x * x;
    m4 += x * x * x * x;
    neighbours += x * before;
    beyond_two += std::fabs(x) > 2;
    before = x;
  }
  double error = 5 / std::sqrt(static_cast<double>(n));  // five standard errors of a mean of variance 1
  EXPECT_NEAR(m1 / n, 0, error);
  EXPECT_NEAR(m2 / n, 1, error * std::sqrt(2.0));
  EXPECT_NEAR(m3 / n, 0, error * std::sqrt(15.0));
  EXPECT_NEAR(m4 / n, 3, error * std::sqrt(96.0));
  EXPECT_NEAR(neighbours / n, 0, error);
  EXPECT_NEAR(static_cast<double>(beyond_two) / n, std::erfc(std::sqrt(2.0)), error * std::sqrt(0.0455));
}

}  // namespace
}  // namespace xce

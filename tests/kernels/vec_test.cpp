// exp and tanh over the whole float range against double, their limits, and the rounding of the loads and stores.
#include "kernels/cpu/vec.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

namespace xce {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

TEST(Vec, ExpIsAccurateOnEveryNormalResult) {
  double worst = 0;
  int64_t seen = 0;
  for (uint64_t bits = 0; bits < (uint64_t{1} << 32); bits += 997) {
    float x = std::bit_cast<float>(static_cast<uint32_t>(bits));
    double want = std::exp(static_cast<double>(x));
    if (!(want >= std::numeric_limits<float>::min() && want <= std::numeric_limits<float>::max())) continue;
    double ulp = std::ldexp(1.0, std::ilogb(want) - 23);
    worst = std::max(worst, std::abs(cpu::exp(x) - want) / ulp);
    ++seen;
  }
  EXPECT_LE(worst, 1.5);
  EXPECT_GT(seen, 1000000);
}

TEST(Vec, ExpHasTheLimitsOfTheContract) {
  EXPECT_EQ(cpu::exp(0.0f), 1.0f);
  EXPECT_EQ(cpu::exp(-0.0f), 1.0f);
  EXPECT_EQ(cpu::exp(kInf), kInf);
  EXPECT_EQ(cpu::exp(-kInf), 0.0f);
  EXPECT_TRUE(std::isnan(cpu::exp(kNan)));
  EXPECT_TRUE(std::isnan(cpu::exp(-kNan)));
  EXPECT_TRUE(std::isnan(cpu::exp(std::bit_cast<float>(0x7f812345u))));
  EXPECT_EQ(cpu::exp(std::numeric_limits<float>::max()), kInf);
  EXPECT_EQ(cpu::exp(std::numeric_limits<float>::lowest()), 0.0f);
}

TEST(Vec, ExpTurnsAtTheEdgesOfTheFloatRange) {
  float last = 88.72283f;  // the largest float whose exp is finite
  EXPECT_TRUE(std::isfinite(cpu::exp(last)));
  EXPECT_NEAR(cpu::exp(last), std::exp(static_cast<double>(last)), 1e32);
  EXPECT_EQ(cpu::exp(std::nextafter(last, kInf)), kInf);
  EXPECT_NEAR(cpu::exp(-87.33f), std::exp(static_cast<double>(-87.33f)), 1e-44);
  for (float x = -87.0f; x > -110.0f; x -= 0.001f) {
    float y = cpu::exp(x);
    EXPECT_TRUE(y >= 0 && y <= 1.7e-38f) << x << " " << y;
  }
}

TEST(Vec, ExpInAVectorisedLoopEqualsTheScalar) {
  constexpr int kN = 1025;
  std::vector<float> x(kN), y(kN, kNan);
  for (int i = 0; i < kN; ++i) x[i] = (i - 512) * 0.21f;
  x[3] = kNan, x[4] = kInf, x[5] = -kInf;
#pragma omp simd
  for (int i = 0; i < kN; ++i) y[i] = cpu::exp(x[i]);
  for (int i = 0; i < kN; ++i) {
    double want = std::exp(static_cast<double>(x[i]));
    if (std::isnan(want)) {
      EXPECT_TRUE(std::isnan(y[i]));
    } else if (want > std::numeric_limits<float>::max()) {
      EXPECT_EQ(y[i], kInf);
    } else {
      EXPECT_NEAR(y[i], want, 2e-7 * want + 1.2e-38) << x[i];
    }
  }
}

TEST(Vec, TanhIsAccurateEverywhere) {
  double worst = 0;
  float worst_at = 0;
  int64_t seen = 0;
  for (uint64_t bits = 0; bits < (uint64_t{1} << 32); bits += 499) {
    const float x = std::bit_cast<float>(static_cast<uint32_t>(bits));
    if (std::isnan(x) || std::abs(x) < std::numeric_limits<float>::min()) continue;
    const double want = std::tanh(static_cast<double>(x)), ulp = std::ldexp(1.0, std::ilogb(want) - 23);
    const double error = std::abs(cpu::tanh(x) - want) / ulp;
    if (error > worst) worst = error, worst_at = x;
    ++seen;
  }
  for (float x = 0.5f; x < 10; x = std::nextafter(x, kInf) * 1.000001f) {  // both forms meet here
    const double want = std::tanh(static_cast<double>(x)), ulp = std::ldexp(1.0, std::ilogb(want) - 23);
    const double error = std::abs(cpu::tanh(x) - want) / ulp;
    if (error > worst) worst = error, worst_at = x;
    ASSERT_EQ(cpu::tanh(-x), -cpu::tanh(x)) << x;
    ASSERT_LE(cpu::tanh(x), 1.0f) << x;
  }
  EXPECT_LE(worst, 2.0) << "at " << worst_at;
  EXPECT_GT(seen, 1000000);
}

TEST(Vec, TanhHasTheLimitsOfTheContract) {
  EXPECT_EQ(cpu::tanh(0.0f), 0.0f);
  EXPECT_TRUE(std::signbit(cpu::tanh(-0.0f)));
  EXPECT_EQ(cpu::tanh(kInf), 1.0f);
  EXPECT_EQ(cpu::tanh(-kInf), -1.0f);
  EXPECT_EQ(cpu::tanh(std::numeric_limits<float>::lowest()), -1.0f);
  EXPECT_EQ(cpu::tanh(1e-30f), 1e-30f);
  EXPECT_EQ(cpu::tanh(1e-40f), 1e-40f);
  EXPECT_TRUE(std::isnan(cpu::tanh(kNan)));
  EXPECT_TRUE(std::isnan(cpu::tanh(std::bit_cast<float>(0x7f812345u))));
  EXPECT_NEAR(cpu::tanh(0.3), std::tanh(0.3), 1e-16);
}

TEST(Vec, TanhInAVectorisedLoopEqualsTheScalar) {
  constexpr int kN = 1025;
  std::vector<float> x(kN), y(kN, 7.0f);
  for (int i = 0; i < kN; ++i) x[i] = (i - 512) * 0.021f;
  x[3] = kNan, x[4] = kInf, x[5] = -kInf;
#pragma omp simd
  for (int i = 0; i < kN; ++i) y[i] = cpu::tanh(x[i]);
  for (int i = 0; i < kN; ++i) {
    if (std::isnan(x[i]))
      EXPECT_TRUE(std::isnan(y[i]));
    else
      EXPECT_NEAR(y[i], std::tanh(static_cast<double>(x[i])), 2.4e-7 * std::abs(std::tanh(x[i]))) << x[i];
  }
}

TEST(Vec, SigmoidSaturatesAndKeepsNan) {
  for (float x = -30; x < 30; x += 0.37f)
    EXPECT_NEAR(cpu::sigmoid(x), 1 / (1 + std::exp(-static_cast<double>(x))), 1e-7) << x;
  EXPECT_EQ(cpu::sigmoid(200.0f), 1.0f);
  EXPECT_EQ(cpu::sigmoid(-200.0f), 0.0f);
  EXPECT_TRUE(std::isnan(cpu::sigmoid(kNan)));
  EXPECT_NEAR(cpu::sigmoid(0.3), 1 / (1 + std::exp(-0.3)), 1e-16);
}

TEST(Vec, StoreRoundsBf16ToNearestEven) {
  std::vector<Bf16> out(6);
  cpu::store(out.data(), 0, 1.0f + 1.0f / 256);    // a tie: down to the even 1
  cpu::store(out.data(), 1, 1.0f + 3.0f / 256);    // a tie: up to the even 1 + 2/128
  cpu::store(out.data(), 2, 1.0f + 1.001f / 256);  // above the tie: up
  cpu::store(out.data(), 3, kNan);
  cpu::store(out.data(), 4, std::numeric_limits<float>::max());
  cpu::store(out.data(), 5, -kInf);
  EXPECT_EQ(cpu::load(out.data(), 0), 1.0f);
  EXPECT_EQ(cpu::load(out.data(), 1), 1.0f + 4.0f / 256);
  EXPECT_EQ(cpu::load(out.data(), 2), 1.0f + 2.0f / 256);
  EXPECT_TRUE(std::isnan(cpu::load(out.data(), 3)));
  EXPECT_EQ(cpu::load(out.data(), 4), kInf);
  EXPECT_EQ(cpu::load(out.data(), 5), -kInf);
}

}  // namespace
}  // namespace xce

// Element types: bf16 rounding, sizes, and the switch from DType to a C++ type.
#include "kernels/base/dtype.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <string>

namespace xce {
namespace {

float from_bits(uint32_t bits) {
  return std::bit_cast<float>(bits);
}

TEST(Bf16, HoldsEveryOneOfItsValues) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    float value = from_bits(bits << 16);
    if (std::isnan(value)) continue;
    ASSERT_EQ(Bf16(value).bits, bits);
    ASSERT_EQ(std::bit_cast<uint32_t>(static_cast<float>(Bf16(value))), bits << 16);
  }
}

// The nearest of the two neighbours; beyond the largest bf16 the upper one stands for 2^128, which infinity replaces.
TEST(Bf16, RoundsToNearest) {
  std::mt19937 gen(1);
  auto finite = [](float x) { return std::isinf(x) ? std::copysign(std::ldexp(1.0, 128), x) : static_cast<double>(x); };
  for (int i = 0; i < 100000; ++i) {
    uint32_t bits = gen();
    double x = from_bits(bits);
    if (!std::isfinite(x)) continue;
    double inner = from_bits(bits & 0xffff0000u), outer = finite(from_bits((bits & 0xffff0000u) + 0x10000u));
    double got = finite(Bf16(from_bits(bits)));
    double error = std::fabs(got - x), best = std::min(std::fabs(inner - x), std::fabs(outer - x));
    ASSERT_EQ(error, best) << x;
    ASSERT_TRUE(got == inner || got == outer) << x;
  }
}

TEST(Bf16, TiesGoToEven) {
  EXPECT_EQ(static_cast<float>(Bf16(257.0f)), 256.0f);  // between 256 and 258
  EXPECT_EQ(static_cast<float>(Bf16(259.0f)), 260.0f);  // between 258 and 260
  EXPECT_EQ(static_cast<float>(Bf16(-257.0f)), -256.0f);
  EXPECT_EQ(static_cast<float>(Bf16(-259.0f)), -260.0f);
  EXPECT_EQ(static_cast<float>(Bf16(std::nextafter(257.0f, 300.0f))), 258.0f);
  EXPECT_EQ(static_cast<float>(Bf16(std::nextafter(259.0f, 0.0f))), 258.0f);
  EXPECT_EQ(Bf16(from_bits(0x3fff8000)).bits, 0x4000);  // a carry into the exponent
}

TEST(Bf16, KeepsSignedZeroInfinityAndDenormals) {
  EXPECT_EQ(Bf16(0.0f).bits, 0x0000);
  EXPECT_EQ(Bf16(-0.0f).bits, 0x8000);
  EXPECT_EQ(Bf16(std::numeric_limits<float>::infinity()).bits, 0x7f80);
  EXPECT_EQ(Bf16(-std::numeric_limits<float>::infinity()).bits, 0xff80);
  EXPECT_EQ(Bf16(std::numeric_limits<float>::max()).bits, 0x7f80);  // above the largest bf16 by more than half a step
  EXPECT_EQ(Bf16(from_bits(0x00018000)).bits, 0x0002);              // denormal, tie to even
  EXPECT_EQ(Bf16(from_bits(0x00008000)).bits, 0x0000);
  EXPECT_EQ(Bf16(from_bits(0x00008001)).bits, 0x0001);
  EXPECT_EQ(Bf16(std::numeric_limits<float>::denorm_min()).bits, 0x0000);
}

TEST(Bf16, NanStaysNan) {
  for (uint32_t bits : {0x7fc00000u, 0x7f800001u, 0x7fffffffu, 0xffc00000u, 0xff800001u, 0xffffffffu}) {
    Bf16 x(from_bits(bits));
    EXPECT_TRUE(std::isnan(static_cast<float>(x))) << bits;
    EXPECT_EQ(x.bits >> 15, bits >> 31) << "sign of " << bits;
  }
}

TEST(DType, SizesAndNames) {
  EXPECT_EQ(size_of(DType::kF32), 4u);
  EXPECT_EQ(size_of(DType::kBf16), 2u);
  EXPECT_EQ(size_of(DType::kF64), 8u);
  EXPECT_STREQ(name_of(DType::kF32), "fp32");
  EXPECT_STREQ(name_of(DType::kBf16), "bf16");
  EXPECT_STREQ(name_of(DType::kF64), "fp64");
  EXPECT_THROW(size_of(static_cast<DType>(9)), Error);
}

TEST(DType, AccumulationTypes) {
  EXPECT_EQ(accum_dtype(DType::kF32), DType::kF32);
  EXPECT_EQ(accum_dtype(DType::kBf16), DType::kF32);
  EXPECT_EQ(accum_dtype(DType::kF64), DType::kF64);
  EXPECT_TRUE((std::is_same_v<Accum<Bf16>, float> && std::is_same_v<Accum<float>, float>));
  EXPECT_TRUE((std::is_same_v<Accum<double>, double>));
}

TEST(DType, VisitGivesTheTypeOfThatSize) {
  for (DType dtype : {DType::kF32, DType::kBf16, DType::kF64})
    EXPECT_EQ(visit_dtype(dtype, []<class T>(std::type_identity<T>) { return sizeof(T); }), size_of(dtype));
  EXPECT_THROW(visit_dtype(static_cast<DType>(7), [](auto) {}), Error);
  EXPECT_EQ(visit_index(IndexType::kI32, []<class I>(std::type_identity<I>) { return sizeof(I); }), 4u);
  EXPECT_EQ(visit_index(IndexType::kI64, []<class I>(std::type_identity<I>) { return sizeof(I); }), 8u);
  EXPECT_THROW(visit_index(static_cast<IndexType>(7), [](auto) {}), Error);
}

TEST(Check, NamesExpectationAndValue) {
  int rows = -3;
  try {
    XCE_CHECK(rows >= 0, "Some.rows >= 0", rows);
    FAIL() << "no exception";
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()), "expected Some.rows >= 0, got -3");
    EXPECT_EQ(error.code(), ErrorCode::kRuntime);
  }
  XCE_CHECK(rows == -3, "no exception", rows);
}

}  // namespace
}  // namespace xce

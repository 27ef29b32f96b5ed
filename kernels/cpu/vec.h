// Words of the CPU kernels' inner loops, written so that the compiler vectorises `#pragma omp simd` loops made of them:
// loads and stores of any dtype as its accumulation type, and branch-free exp and tanh.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "kernels/base/dtype.h"

namespace xce::cpu {

// parallel_for's grain for element-wise loops: fewer elements than this are done before another thread has woken up.
constexpr int64_t kGrain = 8192;
// The same in rows of `cols` elements.
inline int64_t row_grain(int64_t cols) {
  return std::max<int64_t>(1, kGrain / std::max<int64_t>(1, cols));
}

// p[i] as the type that arithmetic on it uses: double for double, else float.
template <class T>
inline Accum<T> load(const T* p, int64_t i) {
  return static_cast<Accum<T>>(p[i]);
}
// p[i] = value, rounded to nearest even.
template <class T>
inline void store(T* p, int64_t i, Accum<T> value) {
  p[i] = static_cast<T>(value);
}

// e^x within 1.1 ulp: 2^n e^r with n = round(x / ln 2), |r| <= ln 2 / 2, a polynomial for e^r (Cephes, Moshier 1989),
// and n added to its exponent bits. exp(NaN) = NaN, exp(inf) = inf, exp(-inf) = 0; results below the smallest normal
// number are 0. Always inlined, as tanh: one call left in a loop, and the loop is scalar.
[[gnu::always_inline]] inline float exp(float x) {
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer, left in the low mantissa bits
  constexpr float kLn2High = 0.693359375f, kLn2Low = -2.12194440e-4f;  // n * kLn2High is exact
  constexpr float kOverflow = 88.7228317f, kUnderflow = -87.3365402f;
  float shifted = x * 1.44269504f + kRound;
  float n = shifted - kRound;
  float r = (x - n * kLn2High) - n * kLn2Low;
  float q = 1.9875691500e-4f;
  q = q * r + 1.3981999507e-3f;
  q = q * r + 8.3334519073e-3f;
  q = q * r + 4.1665795894e-2f;
  q = q * r + 1.6666665459e-1f;
  q = q * r + 5.0000001201e-1f;
  float p = q * (r * r) + r + 1.0f;
  float y = std::bit_cast<float>(std::bit_cast<uint32_t>(p) + (std::bit_cast<uint32_t>(shifted) << 23));
  y = x > kOverflow ? std::numeric_limits<float>::infinity() : y;
  y = x < kUnderflow ? 0.0f : y;
  return x != x ? x : y;
}
inline double exp(double x) {
  return std::exp(x);
}

// tanh x within 2 ulp: an odd polynomial below 0.625, fitted to the relative error (4e-9), and 1 - 2 / (e^2|x| + 1)
// beyond, which cancels below. tanh(NaN) = NaN, tanh(+-inf) = +-1, tanh(-0) = -0.
[[gnu::always_inline]] inline float tanh(float x) {
  constexpr uint32_t kSign = 0x80000000u;
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const float size = std::bit_cast<float>(bits & ~kSign), u = x * x;
  float q = -5.7049873e-3f;
  q = q * u + 2.0639008e-2f;
  q = q * u - 5.3739715e-2f;
  q = q * u + 1.3331442e-1f;
  q = q * u - 3.3333281e-1f;
  const float small = (q * u) * size + size, large = 1.0f - 2.0f / (exp(2.0f * size) + 1.0f);
  const float y = size < 0.625f ? small : large;
  return std::bit_cast<float>(std::bit_cast<uint32_t>(y) | (bits & kSign));
}
inline double tanh(double x) {
  return std::tanh(x);
}

// 1 / (1 + e^-x).
template <class A>
inline A sigmoid(A x) {
  return A(1) / (A(1) + exp(-x));
}

}  // namespace xce::cpu

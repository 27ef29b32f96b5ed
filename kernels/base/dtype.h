// Element types and the one place that turns a run-time DType into a C++ type.
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/base/check.h"

namespace xce {

enum class DType : int32_t { kF32 = 0, kBf16 = 1, kF64 = 2, kF16 = 3 };
enum class IndexType : int32_t { kI32 = 0, kI64 = 1 };

// Storage of a bfloat16: the upper half of a float; conversion from float rounds to nearest even, NaN stays NaN.
struct Bf16 {
  uint16_t bits;
  Bf16() = default;
  explicit Bf16(float value) {
    uint32_t u = std::bit_cast<uint32_t>(value);
    uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
    bits = static_cast<uint16_t>((u & 0x7fffffffu) > 0x7f800000u ? ((u >> 16) | 0x40u) : rounded);
  }
  operator float() const { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }
};
static_assert(sizeof(Bf16) == 2 && std::is_trivially_copyable_v<Bf16>);

// Storage of an IEEE half; conversion from float rounds to nearest even, beyond 65504 to infinity, NaN stays NaN. No
// branches, so that loops of it vectorise.
struct F16 {
  uint16_t bits;
  F16() = default;
  explicit F16(float value) {
    const uint32_t u = std::bit_cast<uint32_t>(value), sign = (u >> 16) & 0x8000u, size = u & 0x7fffffffu;
    const uint32_t normal = (size + 0xfffu + ((size >> 13) & 1u) - (112u << 23)) >> 13;
    // Beside 0.5f the last bit of a float is the smallest half: the addition rounds.
    const uint32_t small = std::bit_cast<uint32_t>(std::bit_cast<float>(size) + 0.5f) - 0x3f000000u;
    uint32_t half = size < 0x38800000u ? small : normal;
    half = size >= 0x477ff000u ? 0x7c00u : half;
    half = size > 0x7f800000u ? 0x7e00u : half;
    bits = static_cast<uint16_t>(sign | half);
  }
  operator float() const {
    const uint32_t size = bits & 0x7fffu, sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
    const uint32_t finite = std::bit_cast<uint32_t>(std::bit_cast<float>(size << 13) * 0x1p112f);
    return std::bit_cast<float>(sign | (size >= 0x7c00u ? 0x7f800000u | (size << 13) : finite));
  }
};
static_assert(sizeof(F16) == 2 && std::is_trivially_copyable_v<F16>);

inline size_t size_of(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return 4;
    case DType::kBf16:
    case DType::kF16:
      return 2;
    case DType::kF64:
      return 8;
  }
  throw Error(ErrorCode::kRuntime, str("expected a DType, got ", static_cast<int>(dtype)));
}
inline const char* name_of(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "fp32";
    case DType::kBf16:
      return "bf16";
    case DType::kF16:
      return "fp16";
    case DType::kF64:
      return "fp64";
  }
  return "?";
}

// The type in which T's statistics, sums and main gradients are kept: fp64 for fp64, else fp32.
template <class T>
using Accum = std::conditional_t<std::is_same_v<T, double>, double, float>;
inline DType accum_dtype(DType dtype) {
  return dtype == DType::kF64 ? DType::kF64 : DType::kF32;
}

// Calls f(std::type_identity<T>{}) with the C++ type of dtype: the one dtype switch. Fp16 is for the losses alone:
// other ops would pay for it with a third more to compile.
template <class F>
decltype(auto) visit_dtype(DType dtype, F&& f) {
  switch (dtype) {
    case DType::kF32:
      return f(std::type_identity<float>{});
    case DType::kBf16:
      return f(std::type_identity<Bf16>{});
    case DType::kF64:
      return f(std::type_identity<double>{});
    case DType::kF16:
      throw Error(ErrorCode::kRuntime, "expected fp32, bf16 or fp64, got fp16: the losses alone take it");
  }
  throw Error(ErrorCode::kRuntime, str("expected a DType, got ", static_cast<int>(dtype)));
}
// The same with fp16.
template <class F>
decltype(auto) visit_loss_dtype(DType dtype, F&& f) {
  if (dtype == DType::kF16) return f(std::type_identity<F16>{});
  return visit_dtype(dtype, f);
}
// The same for index arrays.
template <class F>
decltype(auto) visit_index(IndexType type, F&& f) {
  switch (type) {
    case IndexType::kI32:
      return f(std::type_identity<int32_t>{});
    case IndexType::kI64:
      return f(std::type_identity<int64_t>{});
  }
  throw Error(ErrorCode::kRuntime, str("expected an IndexType, got ", static_cast<int>(type)));
}

}  // namespace xce

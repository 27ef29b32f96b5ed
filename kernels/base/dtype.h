// Element types and the one place that turns a run-time DType into a C++ type.
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/base/check.h"

namespace xce {

enum class DType : int32_t { kF32 = 0, kBf16 = 1, kF64 = 2 };
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

inline size_t size_of(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return 4;
    case DType::kBf16:
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

// Calls f(std::type_identity<T>{}) with the C++ type of dtype: the one dtype switch.
template <class F>
decltype(auto) visit_dtype(DType dtype, F&& f) {
  switch (dtype) {
    case DType::kF32:
      return f(std::type_identity<float>{});
    case DType::kBf16:
      return f(std::type_identity<Bf16>{});
    case DType::kF64:
      return f(std::type_identity<double>{});
  }
  throw Error(ErrorCode::kRuntime, str("expected a DType, got ", static_cast<int>(dtype)));
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

// Words of CUDA kernels' inner loops: loads and stores of N elements in as few 16-byte accesses as they need,
// arithmetic type and rounding of each dtype, and the grid-stride loop over vectors with its tail.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "kernels/base/dtype.h"

namespace xce::cuda {

// x as the type that arithmetic on it uses: double for double, float for the others.
__device__ inline float widen(Bf16 x) {
  return __uint_as_float(static_cast<uint32_t>(x.bits) << 16);
}
__device__ inline float widen(F16 x) {
  return __half2float(__ushort_as_half(x.bits));
}
__device__ inline float widen(float x) {
  return x;
}
__device__ inline double widen(double x) {
  return x;
}
// 2^x to a relative error of 2^-22, results below the smallest normal number as 0.
__device__ inline float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
// The nearest T, ties to even.
template <class T>
__device__ inline T narrow(Accum<T> x) {
  if constexpr (std::is_same_v<T, Bf16>) {
    Bf16 y;
    y.bits = __bfloat16_as_ushort(__float2bfloat16_rn(x));
    return y;
  } else if constexpr (std::is_same_v<T, F16>) {
    F16 y;
    y.bits = __half_as_ushort(__float2half_rn(x));
    return y;
  } else {
    return x;
  }
}

// x in another dtype, rounded to nearest even once.
template <class To, class From>
__device__ inline To rounded(From x) {
  if constexpr (std::is_same_v<To, From>) {
    return x;
  } else if constexpr (sizeof(To) == 2 && std::is_same_v<From, double>) {
    // Round to odd in between: the last bit of the float keeps what was cut off, so that no tie arises.
    float y = __double2float_rz(x);
    if (static_cast<double>(y) != x) y = __uint_as_float(__float_as_uint(y) | 1u);
    return narrow<To>(y);
  } else {
    return narrow<To>(static_cast<Accum<To>>(widen(x)));
  }
}

template <class T, int N>
struct Vec {
  T at[N];
};

template <class T, int N>
using Word = std::conditional_t<
    sizeof(T) * N % 16 == 0, uint4,
    std::conditional_t<sizeof(T) * N == 8, uint2, std::conditional_t<sizeof(T) * N == 4, uint32_t, T>>>;

// p[0 .. N), p aligned to 16 bytes or to the N elements, whichever is less.
template <int N, class T>
__device__ inline Vec<T, N> load(const T* p) {
  using W = Word<T, N>;
  Vec<T, N> v;
#pragma unroll
  for (int i = 0; i < static_cast<int>(sizeof(v) / sizeof(W)); ++i) {
    W word = reinterpret_cast<const W*>(p)[i];
    memcpy(reinterpret_cast<char*>(&v) + i * sizeof(W), &word, sizeof(W));
  }
  return v;
}
template <int N, class T>
__device__ inline void store(T* p, const Vec<T, N>& v) {
  using W = Word<T, N>;
#pragma unroll
  for (int i = 0; i < static_cast<int>(sizeof(v) / sizeof(W)); ++i) {
    W word;
    memcpy(&word, reinterpret_cast<const char*>(&v) + i * sizeof(W), sizeof(W));
    reinterpret_cast<W*>(p)[i] = word;
  }
}

// N elements that wait: 16 bytes in four registers, where the compiler would spread a Vec of Bf16 over eight or keep
// the floats it becomes; or one element.
template <class T, int N>
struct Packed {
  static_assert(N * sizeof(T) == 16);
  uint32_t words[4];
};
template <class T>
struct Packed<T, 1> {
  T element;
};

// p[0 .. N) of global memory. Several in a row are in flight together: the compiler keeps them where they stand.
template <int N, class T>
__device__ inline Packed<T, N> load_packed(const T* p) {
  if constexpr (N == 1) {
    return {*p};
  } else {
    Packed<T, N> packed;
    uint32_t(&w)[4] = packed.words;
    asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3])
                 : "l"(__cvta_generic_to_global(p))
                 : "memory");
    return packed;
  }
}
// The same, or zeros without touching memory.
template <int N, class T>
__device__ inline Packed<T, N> load_packed_if(bool wanted, const T* p) {
  Packed<T, N> packed{};
  if (wanted) packed = load_packed<N>(p);
  return packed;
}
template <class T, int N>
__device__ inline Vec<T, N> unpack(Packed<T, N>& packed) {
  if constexpr (N > 1)  // hides that these bits were unpacked before: the compiler would keep those floats
#pragma unroll
    for (uint32_t& word : packed.words) asm volatile("" : "+r"(word));
  Vec<T, N> v;
  memcpy(&v, &packed, sizeof(v));
  return v;
}

// f(std::integral_constant<int, N>, i) for each vector of N elements of [0, n), then f(<1>, i) for each of the rest;
// every i by one thread of the grid.
template <int N, class F>
__device__ inline void for_each_vector(int64_t n, F&& f) {
  const int64_t thread = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x;
  const int64_t threads = gridDim.x * static_cast<int64_t>(blockDim.x);
  for (int64_t v = thread; v < n / N; v += threads) f(std::integral_constant<int, N>{}, v * N);
  if constexpr (N > 1)
    for (int64_t i = n / N * N + thread; i < n; i += threads) f(std::integral_constant<int, 1>{}, i);
}

}  // namespace xce::cuda

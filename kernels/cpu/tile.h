// Products of small matrices held in cache, for kernels whose tiles are too small for a BLAS call: a block of kTileRows
// x (1 or 2 vectors) of the result stays in registers; A's elements are broadcast, B's rows are read as vectors.
#pragma once

#include <cstdint>
#include <cstring>
#include <utility>

namespace xce::cpu {

#if defined(__AVX512F__)
inline constexpr int kVectorBytes = 64, kTileRows = 8;
#elif defined(__AVX__)
inline constexpr int kVectorBytes = 32, kTileRows = 4;
#else
inline constexpr int kVectorBytes = 16, kTileRows = 4;
#endif

template <class A>
inline constexpr int kLanes = kVectorBytes / static_cast<int>(sizeof(A));

inline int64_t round_up(int64_t n, int64_t unit) {
  return (n + unit - 1) / unit * unit;
}
inline int64_t round_down(int64_t n, int64_t unit) {
  return n / unit * unit;
}

// A matrix read element by element: element (i, l) is at[i * row_stride + l * col_stride].
template <class A>
struct Strided {
  const A* at;
  int64_t row_stride, col_stride;
};

// One round of transpose_square: swaps the off-diagonal kStep x kStep blocks of each 2 kStep x 2 kStep block. Lane l of
// the new row r comes from row r where l lies in an even block, else from row r + kStep, kStep lanes back; row r +
// kStep likewise.
template <int kStep, class Vector, int... kLane>
inline void swap_blocks(Vector* row, std::integer_sequence<int, kLane...> lanes) {
  constexpr int kWidth = sizeof...(kLane);
#pragma GCC unroll 16
  for (int r = 0; r < kWidth; ++r) {
    if (r & kStep) continue;
    Vector a = row[r], b = row[r + kStep];
    row[r] = __builtin_shufflevector(a, b, (kLane & kStep ? kLane - kStep + kWidth : kLane)...);
    row[r + kStep] = __builtin_shufflevector(a, b, (kLane & kStep ? kLane + kWidth : kLane + kStep)...);
  }
  if constexpr (2 * kStep < kWidth) swap_blocks<2 * kStep>(row, lanes);
}

// Transposes a square of kLanes rows, which lie src_stride apart, into dst, whose rows lie dst_stride apart.
template <class A>
inline void transpose_square(const A* src, int64_t src_stride, A* dst, int64_t dst_stride) {
  typedef A Vector __attribute__((vector_size(kVectorBytes)));
  Vector row[kLanes<A>];
  for (int r = 0; r < kLanes<A>; ++r) std::memcpy(&row[r], src + r * src_stride, sizeof(Vector));
  swap_blocks<1>(row, std::make_integer_sequence<int, kLanes<A>>{});
  for (int r = 0; r < kLanes<A>; ++r) std::memcpy(dst + r * dst_stride, &row[r], sizeof(Vector));
}

// C (kRows x kVectors vectors) = A (kRows x k) B (k x the same columns), added to C with accumulate.
template <int kRows, int kVectors, class A>
inline void multiply_block(int64_t k, Strided<A> a, const A* b, int64_t ldb, A* c, int64_t ldc, bool accumulate) {
  typedef A Vector __attribute__((vector_size(kVectorBytes)));
  constexpr int kWidth = kLanes<A>;
  Vector sum[kRows][kVectors];
  for (int r = 0; r < kRows; ++r)
    for (int v = 0; v < kVectors; ++v) {
      sum[r][v] = Vector{};
      if (accumulate) std::memcpy(&sum[r][v], c + r * ldc + v * kWidth, sizeof(Vector));
    }
  for (int64_t l = 0; l < k; ++l) {
    Vector row[kVectors];
    for (int v = 0; v < kVectors; ++v) std::memcpy(&row[v], b + l * ldb + v * kWidth, sizeof(Vector));
    for (int r = 0; r < kRows; ++r) {
      A x = a.at[r * a.row_stride + l * a.col_stride];
      for (int v = 0; v < kVectors; ++v) sum[r][v] += x * row[v];
    }
  }
  for (int r = 0; r < kRows; ++r)
    for (int v = 0; v < kVectors; ++v) std::memcpy(c + r * ldc + v * kWidth, &sum[r][v], sizeof(Vector));
}

template <int kRows, class A>
inline void multiply_rows(int64_t n, int64_t k, Strided<A> a, const A* b, int64_t ldb, A* c, int64_t ldc,
                          bool accumulate) {
  constexpr int64_t kWidth = kLanes<A>;
  int64_t j = 0;
  for (; j + 2 * kWidth <= n; j += 2 * kWidth) multiply_block<kRows, 2>(k, a, b + j, ldb, c + j, ldc, accumulate);
  if (j < n) multiply_block<kRows, 1>(k, a, b + j, ldb, c + j, ldc, accumulate);
}

// C (rows x n) = A (rows x k) B (k x n), added to C with accumulate; rows <= kTileRows, n a multiple of kLanes<A>.
template <class A>
inline void multiply(int64_t rows, int64_t n, int64_t k, Strided<A> a, const A* b, int64_t ldb, A* c, int64_t ldc,
                     bool accumulate) {
  if (rows == kTileRows) return multiply_rows<kTileRows>(n, k, a, b, ldb, c, ldc, accumulate);
  for (int64_t r = 0; r < rows; ++r) {
    Strided<A> row{a.at + r * a.row_stride, a.row_stride, a.col_stride};
    multiply_rows<1>(n, k, row, b, ldb, c + r * ldc, ldc, accumulate);
  }
}

}  // namespace xce::cpu

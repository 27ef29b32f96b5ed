// Words of the attention kernels that use CUDA cores alone: square tiles of rows in shared memory, and the two products
// on them. A block is 16 x 16 threads; thread (ty, tx) owns rows ty, ty + 16, ... of a result, and of scores the
// columns tx, tx + 16, ..., of output rows the vectors tx, tx + 16, ... Every sum runs in the order of its index.
#pragma once

#include <cstdint>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/vec.cuh"

namespace xce::attention_cuda {

constexpr int kSide = 16, kBlockThreads = kSide * kSide;
constexpr int kVec = 4;  // columns of a vector
// What blocks of every supported architecture may have in shared memory (sm_86 and sm_89: 99 KiB).
constexpr size_t kSharedBytesEverywhere = 99 << 10;

// R * 16 rows of at most C * 64 columns of A. The pitch moves each row to other banks, a vector at a time.
template <class A, int R, int C>
struct Tile {
  static constexpr int kRows = kSide * R, kCols = kSide * kVec * C;
  static constexpr int kPad = 16 / sizeof(A), kPitch = kCols + kPad, kScorePitch = kRows + kPad;
  static constexpr int kElements = kRows * kPitch, kScoreElements = kRows * kScorePitch;
};

// dst = rows [0, rows) and columns [0, cols) of src; zero beyond them, up to whole vectors. `vectors`: every row of src
// may be read kVec elements at a time.
template <class L, class T, class A>
__device__ inline void load_tile(const T* src, int64_t stride, int64_t rows, int cols, bool vectors, A* dst) {
  const int per_row = (cols + kVec - 1) / kVec;
  for (int i = threadIdx.x; i < L::kRows * per_row; i += kBlockThreads) {
    const int r = i / per_row, c = i % per_row * kVec;
    cuda::Vec<T, kVec> v{};
    if (r < rows) {
      const T* from = src + r * stride + c;
      if (vectors) {
        v = cuda::load<kVec>(from);
      } else {
#pragma unroll
        for (int e = 0; e < kVec; ++e)
          if (c + e < cols) v.at[e] = from[e];
      }
    }
    cuda::Vec<A, kVec> wide;
#pragma unroll
    for (int e = 0; e < kVec; ++e) wide.at[e] = cuda::widen(v.at[e]);
    cuda::store<kVec>(dst + r * L::kPitch + c, wide);
  }
}

// s[r][c] = the dot product of the thread's row r of a with row tx + 16 c of b, over `cols` columns.
template <class L, int R, class A>
__device__ inline void dot_rows(const A* a, const A* b, int cols, A (&s)[R][R]) {
  const A* a_row = a + threadIdx.x / kSide * L::kPitch;
  const A* b_row = b + threadIdx.x % kSide * L::kPitch;
#pragma unroll
  for (int r = 0; r < R; ++r)
#pragma unroll
    for (int c = 0; c < R; ++c) s[r][c] = 0;
  for (int d = 0; d < cols; d += kVec) {
    cuda::Vec<A, kVec> x[R], y[R];
#pragma unroll
    for (int r = 0; r < R; ++r) {
      x[r] = cuda::load<kVec>(a_row + r * kSide * L::kPitch + d);
      y[r] = cuda::load<kVec>(b_row + r * kSide * L::kPitch + d);
    }
#pragma unroll
    for (int e = 0; e < kVec; ++e)
#pragma unroll
      for (int r = 0; r < R; ++r)
#pragma unroll
        for (int c = 0; c < R; ++c) s[r][c] += x[r].at[e] * y[c].at[e];
  }
}

// Shares the thread's scores with the block, in rows of kScorePitch.
template <class L, int R, class A>
__device__ inline void store_scores(const A (&s)[R][R], A* scores) {
  A* at = scores + threadIdx.x / kSide * L::kScorePitch + threadIdx.x % kSide;
#pragma unroll
  for (int r = 0; r < R; ++r)
#pragma unroll
    for (int c = 0; c < R; ++c) at[r * kSide * L::kScorePitch + c * kSide] = s[r][c];
}

// out += scores times rows: the thread's rows, and its vectors of columns below `cols`.
template <class L, int R, int C, class A>
__device__ inline void add_product(const A* scores, const A* rows, int cols, A (&out)[R][C][kVec]) {
  const A* score_row = scores + threadIdx.x / kSide * L::kScorePitch;
  const int column = threadIdx.x % kSide * kVec;
  for (int j = 0; j < L::kRows; j += kVec) {
    cuda::Vec<A, kVec> p[R];
#pragma unroll
    for (int r = 0; r < R; ++r) p[r] = cuda::load<kVec>(score_row + r * kSide * L::kScorePitch + j);
#pragma unroll
    for (int c = 0; c < C; ++c) {
      const int d = column + c * kSide * kVec;
      if (d >= cols) continue;
#pragma unroll
      for (int e = 0; e < kVec; ++e) {
        const auto v = cuda::load<kVec>(rows + (j + e) * L::kPitch + d);
#pragma unroll
        for (int r = 0; r < R; ++r)
#pragma unroll
          for (int k = 0; k < kVec; ++k) out[r][c][k] += p[r].at[e] * v.at[k];
      }
    }
  }
}

// Rows [0, rows) of dst = the thread's rows of out, each times its scale.
template <int R, int C, class T, class A>
__device__ inline void store_rows(const A (&out)[R][C][kVec], const A (&scale)[R], T* dst, int64_t stride, int64_t rows,
                                  int cols) {
  const int ty = threadIdx.x / kSide, column = threadIdx.x % kSide * kVec;
#pragma unroll
  for (int r = 0; r < R; ++r) {
    if (ty + r * kSide >= rows) continue;
    T* to = dst + (ty + r * kSide) * stride;
#pragma unroll
    for (int c = 0; c < C; ++c)
#pragma unroll
      for (int k = 0; k < kVec; ++k) {
        const int d = column + c * kSide * kVec + k;
        if (d < cols) to[d] = cuda::narrow<T>(out[r][c][k] * scale[r]);
      }
  }
}

// The largest and the sum of a row's values: over the 16 threads of the row, the same bits in each.
template <class A>
__device__ inline A row_max(A value) {
#pragma unroll
  for (int offset = kSide / 2; offset > 0; offset /= 2) {
    const A other = __shfl_xor_sync(~0u, value, offset, kSide);
    value = other > value ? other : value;
  }
  return value;
}
template <class A>
__device__ inline A row_sum(A value) {
#pragma unroll
  for (int offset = kSide / 2; offset > 0; offset /= 2) value += __shfl_xor_sync(~0u, value, offset, kSide);
  return value;
}

}  // namespace xce::attention_cuda

// Attention on CUDA cores, in every dtype: one block per tile of queries (forward, dq) or of keys (dk and dv), which
// walks the tiles on the other side in order. Nothing is added across blocks, so every sum has one order; backward pays
// for that with 7 products instead of 5.
#pragma once

#include <cmath>

#include "kernels/attention.h"
#include "kernels/attention_tile_cuda.cuh"
#include "kernels/cuda/reduce.cuh"

namespace xce::attention_cuda {

// Which tile of which head a block works on; blocks with most to do come first.
struct Unit {
  int64_t b, head, tile;
  __device__ Unit(int64_t heads, int64_t heads_in_all, int64_t tile) : tile(tile) {
    const int64_t i = blockIdx.x % heads_in_all;
    b = i / heads;
    head = i % heads;
  }
};

template <class T, class Args>
__device__ inline const T* rows_of(const void* base, const Args& g, int64_t b, int64_t t, int64_t head) {
  return static_cast<const T*>(base) + (b * g.seq_len + t) * g.qkv_stride + head * g.head_dim;
}
template <class Args>
__device__ inline int64_t o_offset(const Args& g, int64_t b, int64_t t, int64_t head) {
  return ((b * g.seq_len + t) * g.heads + head) * g.head_dim;
}

template <class T, int R, int C>
constexpr size_t forward_shared_bytes() {
  using L = Tile<Accum<T>, R, C>;
  return (2 * L::kElements + L::kScoreElements) * sizeof(Accum<T>);
}

// s becomes exp(scale * s - running maximum), zero where hidden; maximum, sum and the output so far follow.
template <int R, int C, class A>
__device__ inline void softmax_tile(int64_t query0, int64_t key0, A scale, A (&s)[R][R], A (&max)[R], A (&sum)[R],
                                    A (&out)[R][C][kVec]) {
  const int64_t query = query0 + threadIdx.x / kSide, key = key0 + threadIdx.x % kSide;
#pragma unroll
  for (int r = 0; r < R; ++r) {
    A largest = max[r];
#pragma unroll
    for (int c = 0; c < R; ++c) {
      s[r][c] = key + c * kSide <= query + r * kSide ? s[r][c] * scale : -A(INFINITY);
      largest = s[r][c] > largest ? s[r][c] : largest;
    }
    largest = row_max(largest);
    const A correction = exp(max[r] - largest);
    max[r] = largest;
    A part = 0;
#pragma unroll
    for (int c = 0; c < R; ++c) part += s[r][c] = exp(s[r][c] - largest);
    sum[r] = sum[r] * correction + row_sum(part);
#pragma unroll
    for (int c = 0; c < C; ++c)
#pragma unroll
      for (int k = 0; k < kVec; ++k) out[r][c][k] *= correction;
  }
}

template <class T, int R, int C>
__global__ void __launch_bounds__(kBlockThreads) forward_simt(AttentionForward g, Accum<T> scale, bool vectors) {
  using A = Accum<T>;
  using L = Tile<A, R, C>;
  extern __shared__ uint4 shared[];
  A *q = reinterpret_cast<A*>(shared), *kv = q + L::kElements, *p = kv + L::kElements;
  const int64_t heads_in_all = g.batch * g.heads, tiles = (g.seq_len + L::kRows - 1) / L::kRows;
  const Unit unit(g.heads, heads_in_all, tiles - 1 - blockIdx.x / heads_in_all);
  const int64_t kv_head = unit.head / (g.heads / g.kv_heads), query0 = unit.tile * L::kRows;
  const int64_t queries = min(int64_t{L::kRows}, g.seq_len - query0);
  const int cols = static_cast<int>(g.head_dim);

  load_tile<L>(rows_of<T>(g.q, g, unit.b, query0, unit.head), g.qkv_stride, queries, cols, vectors, q);
  A max[R], sum[R] = {}, out[R][C][kVec] = {};
#pragma unroll
  for (int r = 0; r < R; ++r) max[r] = -A(INFINITY);
  for (int64_t key0 = 0; key0 <= query0; key0 += L::kRows) {
    const int64_t keys = min(int64_t{L::kRows}, g.seq_len - key0);
    A s[R][R];
    load_tile<L>(rows_of<T>(g.k, g, unit.b, key0, kv_head), g.qkv_stride, keys, cols, vectors, kv);
    __syncthreads();
    dot_rows<L>(q, kv, cols, s);
    softmax_tile(query0, key0, scale, s, max, sum, out);
    store_scores<L>(s, p);
    __syncthreads();
    load_tile<L>(rows_of<T>(g.v, g, unit.b, key0, kv_head), g.qkv_stride, keys, cols, vectors, kv);
    __syncthreads();
    add_product<L>(p, kv, cols, out);
    __syncthreads();
  }
  A inverse[R];
#pragma unroll
  for (int r = 0; r < R; ++r) {
    inverse[r] = A(1) / sum[r];
    const int64_t i = threadIdx.x / kSide + r * kSide;
    if (g.lse && i < queries && threadIdx.x % kSide == 0)
      static_cast<A*>(g.lse)[(unit.b * g.heads + unit.head) * g.seq_len + query0 + i] = max[r] + log(sum[r]);
  }
  store_rows(out, inverse, static_cast<T*>(g.o) + o_offset(g, unit.b, query0, unit.head), g.heads * g.head_dim, queries,
             cols);
}

// delta (batch, heads, seq_len) = the dot product of o and d_o, a warp to each.
template <class T>
__global__ void delta_rows(AttentionBackward g, Accum<T>* delta) {
  const int64_t rows = g.batch * g.heads * g.seq_len, warps = gridDim.x * int64_t{blockDim.x / 32};
  for (int64_t i = blockIdx.x * int64_t{blockDim.x / 32} + threadIdx.x / 32; i < rows; i += warps) {
    const int64_t b = i / (g.heads * g.seq_len), head = i / g.seq_len % g.heads, t = i % g.seq_len;
    const int64_t offset = o_offset(g, b, t, head);
    Accum<T> sum = 0;
    for (int64_t d = threadIdx.x % 32; d < g.head_dim; d += 32)
      sum +=
          cuda::widen(static_cast<const T*>(g.o)[offset + d]) * cuda::widen(static_cast<const T*>(g.d_o)[offset + d]);
    sum = cuda::warp_sum(sum);
    if (threadIdx.x % 32 == 0) delta[i] = sum;
  }
}

template <class T, int R, int C>
constexpr size_t backward_shared_bytes() {
  using L = Tile<Accum<T>, R, C>;
  return (4 * L::kElements + L::kScoreElements) * sizeof(Accum<T>);
}

// s (dot products of q and k) becomes the probabilities, and dp (of d_o and v) the gradient of the scaled scores, zero
// where hidden. kKeysAreRows: the tile's rows are keys and its columns queries; else the other way round.
template <bool kKeysAreRows, int R, class A>
__device__ inline void score_gradients(int64_t row0, int64_t col0, int64_t seq_len, A scale, const A* lse,
                                       const A* delta, A (&s)[R][R], A (&dp)[R][R]) {
#pragma unroll
  for (int r = 0; r < R; ++r)
#pragma unroll
    for (int c = 0; c < R; ++c) {
      const int64_t row = row0 + threadIdx.x / kSide + r * kSide, col = col0 + threadIdx.x % kSide + c * kSide;
      const int64_t query = kKeysAreRows ? col : row, key = kKeysAreRows ? row : col;
      const bool visible = key <= query && query < seq_len;
      s[r][c] = visible ? exp(s[r][c] * scale - lse[query]) : A(0);
      dp[r][c] = visible ? s[r][c] * (dp[r][c] - delta[query]) : A(0);
    }
}

template <class T, int R, int C>
__global__ void __launch_bounds__(kBlockThreads)
    backward_queries(AttentionBackward g, Accum<T> scale, const Accum<T>* delta, bool vectors) {
  using A = Accum<T>;
  using L = Tile<A, R, C>;
  extern __shared__ uint4 shared[];
  A *q = reinterpret_cast<A*>(shared), *d_o = q + L::kElements, *k = d_o + L::kElements, *v = k + L::kElements;
  A* scores = v + L::kElements;
  const int64_t heads_in_all = g.batch * g.heads, tiles = (g.seq_len + L::kRows - 1) / L::kRows;
  const Unit unit(g.heads, heads_in_all, tiles - 1 - blockIdx.x / heads_in_all);
  const int64_t kv_head = unit.head / (g.heads / g.kv_heads), query0 = unit.tile * L::kRows;
  const int64_t queries = min(int64_t{L::kRows}, g.seq_len - query0);
  const int64_t statistics = (unit.b * g.heads + unit.head) * g.seq_len;
  const int cols = static_cast<int>(g.head_dim);

  load_tile<L>(rows_of<T>(g.q, g, unit.b, query0, unit.head), g.qkv_stride, queries, cols, vectors, q);
  load_tile<L>(static_cast<const T*>(g.d_o) + o_offset(g, unit.b, query0, unit.head), g.heads * g.head_dim, queries,
               cols, vectors, d_o);
  A dq[R][C][kVec] = {};
  for (int64_t key0 = 0; key0 <= query0; key0 += L::kRows) {
    const int64_t keys = min(int64_t{L::kRows}, g.seq_len - key0);
    load_tile<L>(rows_of<T>(g.k, g, unit.b, key0, kv_head), g.qkv_stride, keys, cols, vectors, k);
    load_tile<L>(rows_of<T>(g.v, g, unit.b, key0, kv_head), g.qkv_stride, keys, cols, vectors, v);
    __syncthreads();
    A s[R][R], dp[R][R];
    dot_rows<L>(q, k, cols, s);
    dot_rows<L>(d_o, v, cols, dp);
    score_gradients<false>(query0, key0, g.seq_len, scale, static_cast<const A*>(g.lse) + statistics,
                           delta + statistics, s, dp);
    store_scores<L>(dp, scores);
    __syncthreads();
    add_product<L>(scores, k, cols, dq);
    __syncthreads();
  }
  A scales[R];
#pragma unroll
  for (int r = 0; r < R; ++r) scales[r] = scale;
  store_rows(dq, scales, static_cast<T*>(g.dq) + (unit.b * g.seq_len + query0) * g.dqkv_stride + unit.head * g.head_dim,
             g.dqkv_stride, queries, cols);
}

template <class T, int R, int C>
__global__ void __launch_bounds__(kBlockThreads)
    backward_keys(AttentionBackward g, Accum<T> scale, const Accum<T>* delta, bool vectors) {
  using A = Accum<T>;
  using L = Tile<A, R, C>;
  extern __shared__ uint4 shared[];
  A *k = reinterpret_cast<A*>(shared), *v = k + L::kElements, *q = v + L::kElements, *d_o = q + L::kElements;
  A* scores = d_o + L::kElements;
  const int64_t heads_in_all = g.batch * g.kv_heads, group = g.heads / g.kv_heads;
  const Unit unit(g.kv_heads, heads_in_all, blockIdx.x / heads_in_all);
  const int64_t key0 = unit.tile * L::kRows, keys = min(int64_t{L::kRows}, g.seq_len - key0);
  const int cols = static_cast<int>(g.head_dim);

  load_tile<L>(rows_of<T>(g.k, g, unit.b, key0, unit.head), g.qkv_stride, keys, cols, vectors, k);
  load_tile<L>(rows_of<T>(g.v, g, unit.b, key0, unit.head), g.qkv_stride, keys, cols, vectors, v);
  A dk[R][C][kVec] = {}, dv[R][C][kVec] = {};
  for (int64_t head = unit.head * group; head < (unit.head + 1) * group; ++head)
    for (int64_t query0 = key0; query0 < g.seq_len; query0 += L::kRows) {
      const int64_t queries = min(int64_t{L::kRows}, g.seq_len - query0);
      const int64_t statistics = (unit.b * g.heads + head) * g.seq_len;
      load_tile<L>(rows_of<T>(g.q, g, unit.b, query0, head), g.qkv_stride, queries, cols, vectors, q);
      load_tile<L>(static_cast<const T*>(g.d_o) + o_offset(g, unit.b, query0, head), g.heads * g.head_dim, queries,
                   cols, vectors, d_o);
      __syncthreads();
      A s[R][R], dp[R][R];
      dot_rows<L>(k, q, cols, s);
      dot_rows<L>(v, d_o, cols, dp);
      score_gradients<true>(key0, query0, g.seq_len, scale, static_cast<const A*>(g.lse) + statistics,
                            delta + statistics, s, dp);
      store_scores<L>(s, scores);
      __syncthreads();
      add_product<L>(scores, d_o, cols, dv);
      __syncthreads();
      store_scores<L>(dp, scores);
      __syncthreads();
      add_product<L>(scores, q, cols, dk);
      __syncthreads();
    }
  A scales[R], ones[R];
#pragma unroll
  for (int r = 0; r < R; ++r) scales[r] = scale, ones[r] = 1;
  const int64_t offset = (unit.b * g.seq_len + key0) * g.dqkv_stride + unit.head * g.head_dim;
  store_rows(dk, scales, static_cast<T*>(g.dk) + offset, g.dqkv_stride, keys, cols);
  store_rows(dv, ones, static_cast<T*>(g.dv) + offset, g.dqkv_stride, keys, cols);
}

}  // namespace xce::attention_cuda

// Attention in bf16 on tensor cores (sm_80 and later), for head dimensions of whole 16-byte vectors up to 128: the
// walks of attention_simt_cuda.cuh with scores kept in registers. A warp owns 16 rows of a block's tile; a result of
// one product is, rounded to bf16, the left side of the next as it lies. The tile that comes next is copied meanwhile.
//
// Invariants: 1. a stage is written only after the barrier that follows its last use; 2. rows beyond the sequence and
// columns beyond head_dim are zero in shared memory, and so add nothing.
#pragma once

#include <cmath>

#include "kernels/attention.h"
#include "kernels/attention_simt_cuda.cuh"
#include "kernels/cuda/mma_sm80.cuh"

namespace xce::attention_cuda {

constexpr int kMmaThreads = 128, kMmaRows = 64, kWarpRows = 16;  // of the tile that a block owns
constexpr float kLog2E = 1.4426950408889634f, kLn2 = 0.6931471805599453f;

template <int D>
constexpr int kMmaPitch = D + 8;  // moves each row by four banks: eight rows of a matrix touch all 32
template <int D>
constexpr int kBackwardWalk = D == 64 ? 64 : 32;  // rows of a tile on the other side: shared memory for any GPU
constexpr int kForwardWalk = 64;

template <int D>
constexpr size_t forward_mma_bytes() {
  return (kMmaRows + 4 * kForwardWalk) * kMmaPitch<D> * sizeof(Bf16);
}
template <int D>
constexpr size_t backward_mma_bytes() {
  return (2 * kMmaRows + 4 * kBackwardWalk<D>)*kMmaPitch<D> * sizeof(Bf16) + 4 * kBackwardWalk<D> * sizeof(float);
}

// Starts the copy of rows [0, rows) of src into dst (R, kMmaPitch), zeros beyond them and beyond cols.
template <int D, int R>
__device__ inline void copy_tile(const void* src, int64_t stride, int64_t rows, int cols, Bf16* dst) {
#pragma unroll
  for (int i = threadIdx.x; i < R * (D / 8); i += kMmaThreads) {
    const int r = i / (D / 8), c = i % (D / 8) * 8;
    const bool wanted = r < rows && c < cols;
    cuda::copy_async16(dst + r * kMmaPitch<D> + c, static_cast<const Bf16*>(src) + (wanted ? r * stride + c : 0),
                       wanted);
  }
}

// s (16 x N) = 16 rows of a times the transpose of N rows of b.
template <int D, int N>
__device__ inline void mma_dot_rows(const Bf16* a, const Bf16* b, float (&s)[N / 8][4]) {
  const int lane = threadIdx.x % 32;
  a += lane % 16 * kMmaPitch<D> + lane / 16 * 8;
  b += (lane % 8 + lane / 16 * 8) * kMmaPitch<D> + lane / 8 % 2 * 8;
#pragma unroll
  for (int n = 0; n < N / 8; ++n)
#pragma unroll
    for (int e = 0; e < 4; ++e) s[n][e] = 0;
#pragma unroll
  for (int k = 0; k < D; k += 16) {
    uint32_t x[4], y[4];
    cuda::load_matrices(x, a + k);
#pragma unroll
    for (int n = 0; n < N; n += 16) {
      cuda::load_matrices(y, b + n * kMmaPitch<D> + k);
      cuda::mma_bf16(s[n / 8], x, y[0], y[1]);
      cuda::mma_bf16(s[n / 8 + 1], x, y[2], y[3]);
    }
  }
}

// out (16 x D) += s (16 x N), rounded to bf16, times N rows of b.
template <int D, int N>
__device__ inline void mma_add_product(const float (&s)[N / 8][4], const Bf16* b, float (&out)[D / 8][4]) {
  const int lane = threadIdx.x % 32;
  b += lane % 16 * kMmaPitch<D> + lane / 16 * 8;
#pragma unroll
  for (int n = 0; n < N; n += 16) {
    const float(&left)[4] = s[n / 8], (&right)[4] = s[n / 8 + 1];
    const uint32_t x[4] = {cuda::pack_bf16(left[0], left[1]), cuda::pack_bf16(left[2], left[3]),
                           cuda::pack_bf16(right[0], right[1]), cuda::pack_bf16(right[2], right[3])};
#pragma unroll
    for (int d = 0; d < D; d += 16) {
      uint32_t y[4];
      cuda::load_matrices_transposed(y, b + n * kMmaPitch<D> + d);
      cuda::mma_bf16(out[d / 8], x, y[0], y[1]);
      cuda::mma_bf16(out[d / 8 + 1], x, y[2], y[3]);
    }
  }
}

// The thread's part of rows [0, rows) of dst = out, each of its two rows times its scale.
template <int D>
__device__ inline void mma_store_rows(const float (&out)[D / 8][4], const float (&scale)[2], void* dst, int64_t stride,
                                      int64_t rows, int cols) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int64_t row = lane / 4 + half * 8;
    if (row >= rows) continue;
    Bf16* to = static_cast<Bf16*>(dst) + row * stride + lane % 4 * 2;
#pragma unroll
    for (int d = 0; d < D; d += 8)
      if (d < cols)
        *reinterpret_cast<uint32_t*>(to + d) =
            cuda::pack_bf16(out[d / 8][half * 2] * scale[half], out[d / 8][half * 2 + 1] * scale[half]);
  }
}

// The largest and the sum over the four threads that hold a row.
__device__ inline float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
  return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}
__device__ inline float quad_sum(float x) {
  x += __shfl_xor_sync(~0u, x, 1);
  return x + __shfl_xor_sync(~0u, x, 2);
}

// s becomes 2^(scale2 s - running maximum), zero where hidden; maximum, sum and the output so far follow. query and key
// are those of the thread's first element.
template <int D>
__device__ inline void mma_softmax(int64_t query, int64_t key, bool masked, float scale2,
                                   float (&s)[kForwardWalk / 8][4], float (&max)[2], float (&sum)[2],
                                   float (&out)[D / 8][4]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float largest = max[half];
#pragma unroll
    for (int n = 0; n < kForwardWalk / 8; ++n)
#pragma unroll
      for (int e = half * 2; e < half * 2 + 2; ++e) {
        s[n][e] *= scale2;
        if (masked && key + n * 8 + e % 2 > query + half * 8) s[n][e] = -INFINITY;
        largest = fmaxf(largest, s[n][e]);
      }
    largest = quad_max(largest);
    const float correction = cuda::exp2_approx(max[half] - largest);
    max[half] = largest;
    float part = 0;
#pragma unroll
    for (int n = 0; n < kForwardWalk / 8; ++n)
#pragma unroll
      for (int e = half * 2; e < half * 2 + 2; ++e) part += s[n][e] = cuda::exp2_approx(s[n][e] - largest);
    sum[half] = sum[half] * correction + part;  // the quad's sums are joined at the end
#pragma unroll
    for (int d = 0; d < D / 8; ++d)
#pragma unroll
      for (int e = half * 2; e < half * 2 + 2; ++e) out[d][e] *= correction;
  }
}

template <int D>
__global__ void __launch_bounds__(kMmaThreads) forward_mma(AttentionForward g, float scale) {
  constexpr int N = kForwardWalk, kStage = 2 * N * kMmaPitch<D>;
  extern __shared__ uint4 shared[];
  Bf16 *q = reinterpret_cast<Bf16*>(shared), *stages = q + kMmaRows * kMmaPitch<D>;
  const int64_t heads_in_all = g.batch * g.heads, tiles = (g.seq_len + kMmaRows - 1) / kMmaRows;
  const Unit unit(g.heads, heads_in_all, tiles - 1 - blockIdx.x / heads_in_all);
  const int64_t kv_head = unit.head / (g.heads / g.kv_heads), query0 = unit.tile * kMmaRows;
  const int cols = static_cast<int>(g.head_dim), warp_row = threadIdx.x / 32 * kWarpRows, lane = threadIdx.x % 32;
  const int64_t query_end = min(query0 + kMmaRows, g.seq_len), query = query0 + warp_row + lane / 4;
  auto copy_keys = [&](int64_t key0) {
    Bf16* k = stages + key0 / N % 2 * kStage;
    copy_tile<D, N>(rows_of<Bf16>(g.k, g, unit.b, key0, kv_head), g.qkv_stride, g.seq_len - key0, cols, k);
    copy_tile<D, N>(rows_of<Bf16>(g.v, g, unit.b, key0, kv_head), g.qkv_stride, g.seq_len - key0, cols,
                    k + N * kMmaPitch<D>);
  };

  copy_tile<D, kMmaRows>(rows_of<Bf16>(g.q, g, unit.b, query0, unit.head), g.qkv_stride, g.seq_len - query0, cols, q);
  copy_keys(0);
  float max[2] = {-INFINITY, -INFINITY}, sum[2] = {}, out[D / 8][4] = {};
  for (int64_t key0 = 0; key0 < query_end; key0 += N) {
    cuda::wait_for_copies();
    __syncthreads();
    if (key0 + N < query_end) copy_keys(key0 + N);
    const Bf16 *k = stages + key0 / N % 2 * kStage, *v = k + N * kMmaPitch<D>;
    float s[N / 8][4];
    mma_dot_rows<D, N>(q + warp_row * kMmaPitch<D>, k, s);
    mma_softmax<D>(query, key0 + lane % 4 * 2, key0 + N > query0 + warp_row, scale * kLog2E, s, max, sum, out);
    mma_add_product<D, N>(s, v, out);
  }
  float inverse[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float total = quad_sum(sum[half]);
    inverse[half] = 1 / total;
    const int64_t t = query + half * 8;
    if (g.lse && t < g.seq_len && lane % 4 == 0)
      static_cast<float*>(g.lse)[(unit.b * g.heads + unit.head) * g.seq_len + t] = max[half] * kLn2 + logf(total);
  }
  mma_store_rows<D>(out, inverse, static_cast<Bf16*>(g.o) + o_offset(g, unit.b, query0 + warp_row, unit.head),
                    g.heads * g.head_dim, g.seq_len - query0 - warp_row, cols);
}

// s (dot products of q and k) becomes the probabilities, and dp (of d_o and v) the gradient of the scaled scores; both
// of one element.
__device__ inline void mma_score_gradient(bool visible, float scale2, float lse2, float delta, float& s, float& dp) {
  s = visible ? cuda::exp2_approx(s * scale2 - lse2) : 0.f;
  dp = s * (dp - delta);
}

template <int D>
__global__ void __launch_bounds__(kMmaThreads)
    backward_queries_mma(AttentionBackward g, float scale, const float* delta) {
  constexpr int N = kBackwardWalk<D>, kStage = 2 * N * kMmaPitch<D>;
  extern __shared__ uint4 shared[];
  Bf16 *q = reinterpret_cast<Bf16*>(shared), *d_o = q + kMmaRows * kMmaPitch<D>,
       *stages = d_o + kMmaRows * kMmaPitch<D>;
  const int64_t heads_in_all = g.batch * g.heads, tiles = (g.seq_len + kMmaRows - 1) / kMmaRows;
  const Unit unit(g.heads, heads_in_all, tiles - 1 - blockIdx.x / heads_in_all);
  const int64_t kv_head = unit.head / (g.heads / g.kv_heads), query0 = unit.tile * kMmaRows;
  const int cols = static_cast<int>(g.head_dim), warp_row = threadIdx.x / 32 * kWarpRows, lane = threadIdx.x % 32;
  const int64_t query_end = min(query0 + kMmaRows, g.seq_len), query = query0 + warp_row + lane / 4;
  auto copy_keys = [&](int64_t key0) {
    Bf16* k = stages + key0 / N % 2 * kStage;
    copy_tile<D, N>(rows_of<Bf16>(g.k, g, unit.b, key0, kv_head), g.qkv_stride, g.seq_len - key0, cols, k);
    copy_tile<D, N>(rows_of<Bf16>(g.v, g, unit.b, key0, kv_head), g.qkv_stride, g.seq_len - key0, cols,
                    k + N * kMmaPitch<D>);
  };

  copy_tile<D, kMmaRows>(rows_of<Bf16>(g.q, g, unit.b, query0, unit.head), g.qkv_stride, g.seq_len - query0, cols, q);
  copy_tile<D, kMmaRows>(static_cast<const Bf16*>(g.d_o) + o_offset(g, unit.b, query0, unit.head), g.heads * g.head_dim,
                         g.seq_len - query0, cols, d_o);
  copy_keys(0);
  float lse2[2] = {}, row_delta[2] = {}, dq[D / 8][4] = {};
#pragma unroll
  for (int half = 0; half < 2; ++half)
    if (query + half * 8 < g.seq_len) {
      const int64_t at = (unit.b * g.heads + unit.head) * g.seq_len + query + half * 8;
      lse2[half] = static_cast<const float*>(g.lse)[at] * kLog2E;
      row_delta[half] = delta[at];
    }
  for (int64_t key0 = 0; key0 < query_end; key0 += N) {
    cuda::wait_for_copies();
    __syncthreads();
    if (key0 + N < query_end) copy_keys(key0 + N);
    const Bf16 *k = stages + key0 / N % 2 * kStage, *v = k + N * kMmaPitch<D>;
    const bool masked = key0 + N > query0 + warp_row;
    float s[N / 8][4], dp[N / 8][4];
    mma_dot_rows<D, N>(q + warp_row * kMmaPitch<D>, k, s);
    mma_dot_rows<D, N>(d_o + warp_row * kMmaPitch<D>, v, dp);
#pragma unroll
    for (int n = 0; n < N / 8; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const bool visible = !masked || key0 + n * 8 + lane % 4 * 2 + e % 2 <= query + e / 2 * 8;
        mma_score_gradient(visible, scale * kLog2E, lse2[e / 2], row_delta[e / 2], s[n][e], dp[n][e]);
      }
    mma_add_product<D, N>(dp, k, dq);
  }
  const float scales[2] = {scale, scale};
  mma_store_rows<D>(
      dq, scales,
      static_cast<Bf16*>(g.dq) + (unit.b * g.seq_len + query0 + warp_row) * g.dqkv_stride + unit.head * g.head_dim,
      g.dqkv_stride, g.seq_len - query0 - warp_row, cols);
}

template <int D>
__global__ void __launch_bounds__(kMmaThreads) backward_keys_mma(AttentionBackward g, float scale, const float* delta) {
  constexpr int N = kBackwardWalk<D>, kStage = 2 * N * kMmaPitch<D>;
  extern __shared__ uint4 shared[];
  Bf16 *k = reinterpret_cast<Bf16*>(shared), *v = k + kMmaRows * kMmaPitch<D>, *stages = v + kMmaRows * kMmaPitch<D>;
  float* statistics = reinterpret_cast<float*>(stages + 2 * kStage);  // per stage: lse in bits, delta
  const int64_t heads_in_all = g.batch * g.kv_heads, group = g.heads / g.kv_heads;
  const Unit unit(g.kv_heads, heads_in_all, blockIdx.x / heads_in_all);
  const int cols = static_cast<int>(g.head_dim), warp_row = threadIdx.x / 32 * kWarpRows, lane = threadIdx.x % 32;
  const int64_t key0 = unit.tile * kMmaRows, key = key0 + warp_row + lane / 4;
  // The walk: query tiles from the first that sees these keys, for one query head of the group after the other.
  const int64_t tiles = (g.seq_len - key0 + N - 1) / N;
  auto copy_queries = [&](int64_t step) {
    const int64_t head = unit.head * group + step / tiles, query0 = key0 + step % tiles * N;
    Bf16* q = stages + step % 2 * kStage;
    copy_tile<D, N>(rows_of<Bf16>(g.q, g, unit.b, query0, head), g.qkv_stride, g.seq_len - query0, cols, q);
    copy_tile<D, N>(static_cast<const Bf16*>(g.d_o) + o_offset(g, unit.b, query0, head), g.heads * g.head_dim,
                    g.seq_len - query0, cols, q + N * kMmaPitch<D>);
    if (threadIdx.x < N) {
      const int64_t t = query0 + threadIdx.x, at = (unit.b * g.heads + head) * g.seq_len + t;
      float* to = statistics + step % 2 * 2 * N + threadIdx.x;
      to[0] = t < g.seq_len ? static_cast<const float*>(g.lse)[at] * kLog2E : 0.f;
      to[N] = t < g.seq_len ? delta[at] : 0.f;
    }
  };

  copy_tile<D, kMmaRows>(rows_of<Bf16>(g.k, g, unit.b, key0, unit.head), g.qkv_stride, g.seq_len - key0, cols, k);
  copy_tile<D, kMmaRows>(rows_of<Bf16>(g.v, g, unit.b, key0, unit.head), g.qkv_stride, g.seq_len - key0, cols, v);
  copy_queries(0);
  float dk[D / 8][4] = {}, dv[D / 8][4] = {};
  for (int64_t step = 0; step < group * tiles; ++step) {
    cuda::wait_for_copies();
    __syncthreads();
    if (step + 1 < group * tiles) copy_queries(step + 1);
    const Bf16 *q = stages + step % 2 * kStage, *d_o = q + N * kMmaPitch<D>;
    const float *lse2 = statistics + step % 2 * 2 * N + lane % 4 * 2, *row_delta = lse2 + N;
    const int64_t query0 = key0 + step % tiles * N;
    const bool masked = query0 < key0 + warp_row + kWarpRows;
    float s[N / 8][4], dp[N / 8][4];
    mma_dot_rows<D, N>(k + warp_row * kMmaPitch<D>, q, s);
    mma_dot_rows<D, N>(v + warp_row * kMmaPitch<D>, d_o, dp);
#pragma unroll
    for (int n = 0; n < N / 8; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const bool visible = !masked || key + e / 2 * 8 <= query0 + n * 8 + lane % 4 * 2 + e % 2;
        mma_score_gradient(visible, scale * kLog2E, lse2[n * 8 + e % 2], row_delta[n * 8 + e % 2], s[n][e], dp[n][e]);
      }
    mma_add_product<D, N>(s, d_o, dv);
    mma_add_product<D, N>(dp, q, dk);
  }
  const float scales[2] = {scale, scale}, ones[2] = {1, 1};
  const int64_t offset = (unit.b * g.seq_len + key0 + warp_row) * g.dqkv_stride + unit.head * g.head_dim;
  const int64_t rows = g.seq_len - key0 - warp_row;
  mma_store_rows<D>(dk, scales, static_cast<Bf16*>(g.dk) + offset, g.dqkv_stride, rows, cols);
  mma_store_rows<D>(dv, ones, static_cast<Bf16*>(g.dv) + offset, g.dqkv_stride, rows, cols);
}

}  // namespace xce::attention_cuda

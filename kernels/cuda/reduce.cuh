// Sums over a warp and a block in a fixed order: the same bits in every run and in every thread.
#pragma once

namespace xce::cuda {

template <class T>
__device__ inline T warp_sum(T value) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(~0u, value, offset);
  return value;
}

// values[j] becomes its sum over the block's threads, whole warps; every thread calls it and every thread gets the
// sums.
template <class T, int N>
__device__ inline void block_sums(T (&values)[N]) {
  __shared__ T warp_sums[32][N];
#pragma unroll
  for (int j = 0; j < N; ++j) {
    values[j] = warp_sum(values[j]);
    if (threadIdx.x % 32 == 0) warp_sums[threadIdx.x / 32][j] = values[j];
    values[j] = 0;
  }
  __syncthreads();
  for (unsigned warp = 0; warp < blockDim.x / 32; ++warp)
#pragma unroll
    for (int j = 0; j < N; ++j) values[j] += warp_sums[warp][j];
  __syncthreads();  // before the next call writes warp_sums
}
template <class T>
__device__ inline T block_sum(T value) {
  T values[1] = {value};
  block_sums(values);
  return values[0];
}

// op(a, b) over the block's values, associative and commutative; every thread calls it and gets the result.
template <class T, class Op>
__device__ inline T block_reduce(T value, Op op) {
  __shared__ T warp_values[32];
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) value = op(value, __shfl_xor_sync(~0u, value, offset));
  if (threadIdx.x % 32 == 0) warp_values[threadIdx.x / 32] = value;
  __syncthreads();
  for (unsigned warp = 0; warp < blockDim.x / 32; ++warp) value = op(value, warp_values[warp]);
  __syncthreads();  // before the next call writes warp_values
  return value;
}
template <class T>
__device__ inline T block_min(T value) {
  return block_reduce(value, [](T a, T b) { return b < a ? b : a; });
}
template <class T>
__device__ inline T block_max(T value) {
  return block_reduce(value, [](T a, T b) { return b > a ? b : a; });
}

}  // namespace xce::cuda

// Sums over a warp and a block in a fixed order: the same bits in every run and in every thread.
#pragma once

namespace xce::cuda {

template <class T>
__device__ inline T warp_sum(T value) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(~0u, value, offset);
  return value;
}

// The sum over the block's threads, whole warps; every thread calls it and every thread gets it.
template <class T>
__device__ inline T block_sum(T value) {
  __shared__ T warp_sums[32];
  value = warp_sum(value);
  if (threadIdx.x % 32 == 0) warp_sums[threadIdx.x / 32] = value;
  __syncthreads();
  T total = 0;
  for (unsigned warp = 0; warp < blockDim.x / 32; ++warp) total += warp_sums[warp];
  __syncthreads();  // before the next call writes warp_sums
  return total;
}

}  // namespace xce::cuda

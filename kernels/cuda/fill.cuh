// y[0 .. n) = value, rounded: a kernel rather than a memset, because a launch is what ops enqueue.
#pragma once

#include "kernels/base/cuda_check.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/vec.cuh"

namespace xce::cuda {

template <class T, int N>
__global__ void fill_kernel(T* y, int64_t n, double value) {
  const T element = rounded<T>(value);
  for_each_vector<N>(n, [&]<int W>(std::integral_constant<int, W>, int64_t i) {
    Vec<T, W> v;
#pragma unroll
    for (int j = 0; j < W; ++j) v.at[j] = element;
    store<W>(y + i, v);
  });
}

template <class T>
void fill(const CudaExec& exec, T* y, int64_t n, double value) {
  if (n == 0) return;
  with_width<T>(aligned16(y), [&]<int N>(std::integral_constant<int, N>) {
    fill_kernel<T, N><<<grid_for(exec, ceil_div(n, N)), kThreads, 0, exec.stream>>>(y, n, value);
  });
  check_launch("fill");
}

}  // namespace xce::cuda

// What a chunk of the fused loss does to its rows beside the loss itself: inputs in, gradients out.
#pragma once

#include "kernels/cross_entropy/rows_cuda.cuh"
#include "kernels/cuda/fill.cuh"

namespace xce::loss {

// Ignored rows become zeros.
template <int W, class T>
__global__ void __launch_bounds__(cuda::kThreads)
    copy_valid_rows(DeviceRows<Accum<T>, T> r, const T* x, int64_t ldx, T* to) {
  const int64_t i = blockIdx.x;
  const bool valid = r.target(i).valid;
  const T* from = x + (r.first_row + i) * ldx;
  for (int64_t h = threadIdx.x * int64_t{W}; h < r.hidden; h += blockDim.x * int64_t{W})
    cuda::store<W>(to + i * r.hidden + h, valid ? cuda::load<W>(from + h) : cuda::Vec<T, W>{});
}

// Rows of dx, ld apart, from their sum over tiles; with a null `sum` only the zeros of ignored rows, or of all where
// the denominator is zero, which products with weights that are not finite leave as NaN.
template <class T, class D>
__global__ void __launch_bounds__(cuda::kThreads)
    finish_dx(DeviceRows<Accum<T>, T> r, const Accum<T>* sum, D* dx, int64_t ld, bool add) {
  const int64_t i = blockIdx.x;
  const bool valid = r.target(i).valid && denominator(r.options, *r.totals) != 0;
  if (valid ? !sum : add) return;
  for (int64_t h = threadIdx.x; h < r.hidden; h += blockDim.x) {
    D* to = dx + i * ld + h;
    Accum<T> value = valid ? sum[i * r.hidden + h] : Accum<T>(0);
    if (add) value += cuda::widen(*to);
    *to = cuda::narrow<D>(value);
  }
}

constexpr int kColumnThreads = 64, kRowGroups = 8;

// dbias (+)= the columns' sums, times the gradients' scale.
template <class T, class D>
__global__ void __launch_bounds__(kColumnThreads* kRowGroups)
    column_sums(DeviceRows<Accum<T>, T> r, D* dbias, bool add) {
  __shared__ Accum<T> groups[kRowGroups][kColumnThreads];
  const int64_t col = blockIdx.x * int64_t{kColumnThreads} + threadIdx.x;
  Accum<T> sum = 0;
  if (col < r.cols)
    for (int64_t i = threadIdx.y; i < r.rows; i += kRowGroups) sum += cuda::widen(r.dlogits[i * r.ld_out + col]);
  groups[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || col >= r.cols) return;
  for (int group = 1; group < kRowGroups; ++group) sum += groups[group][threadIdx.x];
  if (r.gradient_scale) sum *= static_cast<Accum<T>>(*r.gradient_scale);
  if (add) sum += cuda::widen(dbias[col]);
  dbias[col] = cuda::narrow<D>(sum);
}

// y[i ld .. i ld + cols) = 0 for each of the rows; nothing between them is written.
template <class D>
__global__ void __launch_bounds__(cuda::kThreads) zero_rows_kernel(D* y, int64_t rows, int64_t cols, int64_t ld) {
  for (int64_t i = blockIdx.x; i < rows; i += gridDim.x)
    for (int64_t h = threadIdx.x; h < cols; h += blockDim.x) y[i * ld + h] = D{};
}
template <class D>
void zero_rows(const CudaExec& exec, D* y, int64_t rows, int64_t cols, int64_t ld) {
  if (ld == cols) return cuda::fill(exec, y, rows * cols, 0);
  if (rows == 0) return;
  zero_rows_kernel<<<cuda::grid_for(exec, rows * cuda::kThreads), cuda::kThreads, 0, exec.stream>>>(y, rows, cols, ld);
  cuda::check_launch("zero rows");
}

}  // namespace xce::loss

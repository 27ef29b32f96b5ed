// A block owns whole rows; a thread owns the same columns of each, so that the backward adds up dweight without any
// exchange: one partial per block (in shared memory while the block runs), then a second kernel adds the blocks'
// partials in their order. The second look at a row comes from the caches.
#include "kernels/base/cuda_check.h"
#include "kernels/base/workspace.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/vec.cuh"
#include "kernels/rmsnorm.h"

namespace xce {
namespace {

constexpr int64_t kMaxSharedBytes = 48 << 10;  // without asking for more; wider rows add up in the workspace itself
constexpr int kBackwardBlocksPerSm = 4;
constexpr int kSumColumns = 32, kSumGroups = 8;  // the second kernel's block

template <class T, int N>
__global__ void forward(RmsNormForward args, Accum<T> eps) {
  using A = Accum<T>;
  const int64_t cols = args.cols;
  const T* weight = static_cast<const T*>(args.weight);
  for (int64_t r = blockIdx.x; r < args.rows; r += gridDim.x) {
    const T* x = static_cast<const T*>(args.x) + r * cols;
    T* y = static_cast<T*>(args.y) + r * cols;
    A sum = 0;
    for (int64_t i = threadIdx.x * N; i < cols; i += blockDim.x * N) {
      const auto v = cuda::load<N>(x + i);
#pragma unroll
      for (int j = 0; j < N; ++j) sum += cuda::widen(v.at[j]) * cuda::widen(v.at[j]);
    }
    const A rstd = A(1) / sqrt(cuda::block_sum(sum) / static_cast<A>(cols) + eps);
    for (int64_t i = threadIdx.x * N; i < cols; i += blockDim.x * N) {
      auto v = cuda::load<N>(x + i);
      const auto w = cuda::load<N>(weight + i);
#pragma unroll
      for (int j = 0; j < N; ++j) v.at[j] = cuda::narrow<T>(cuda::widen(w.at[j]) * (cuda::widen(v.at[j]) * rstd));
      cuda::store<N>(y + i, v);
    }
    if (args.rstd && threadIdx.x == 0) static_cast<Accum<T>*>(args.rstd)[r] = rstd;
  }
}

// dx of one row, and the row's share of dweight added to `dweight`.
template <class T, int N>
__device__ void backward_row(const RmsNormBackward& args, int64_t r, Accum<T>* dweight) {
  using A = Accum<T>;
  const int64_t cols = args.cols;
  const T *x = static_cast<const T*>(args.x) + r * cols, *dy = static_cast<const T*>(args.dy) + r * cols;
  const T* weight = static_cast<const T*>(args.weight);
  T* dx = static_cast<T*>(args.dx) + r * cols;
  const A rstd = static_cast<const A*>(args.rstd)[r];
  A dot = 0;
  for (int64_t i = threadIdx.x * N; i < cols; i += blockDim.x * N) {
    const auto vx = cuda::load<N>(x + i), vd = cuda::load<N>(dy + i), w = cuda::load<N>(weight + i);
#pragma unroll
    for (int j = 0; j < N; ++j) dot += cuda::widen(w.at[j]) * cuda::widen(vd.at[j]) * (cuda::widen(vx.at[j]) * rstd);
  }
  const A mean = cuda::block_sum(dot) / static_cast<A>(cols);
  for (int64_t i = threadIdx.x * N; i < cols; i += blockDim.x * N) {
    const auto vx = cuda::load<N>(x + i), vd = cuda::load<N>(dy + i), w = cuda::load<N>(weight + i);
    cuda::Vec<T, N> out;
    if (args.accumulate_dx) out = cuda::load<N>(dx + i);
    auto sums = cuda::load<N>(dweight + i);
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const A xhat = cuda::widen(vx.at[j]) * rstd, d = cuda::widen(vd.at[j]);
      A value = rstd * (cuda::widen(w.at[j]) * d - xhat * mean);
      if (args.accumulate_dx) value += cuda::widen(out.at[j]);
      out.at[j] = cuda::narrow<T>(value);
      sums.at[j] += d * xhat;
    }
    cuda::store<N>(dx + i, out);
    cuda::store<N>(dweight + i, sums);
  }
}

// partial: (gridDim.x, cols).
template <class T, int N, bool kShared>
__global__ void backward(RmsNormBackward args, Accum<T>* partial) {
  using A = Accum<T>;
  extern __shared__ uint4 shared[];
  A* mine = partial + blockIdx.x * args.cols;
  A* sums = kShared ? reinterpret_cast<A*>(shared) : mine;
  cuda::Vec<A, N> vec{};
  for (int64_t i = threadIdx.x * N; i < args.cols; i += blockDim.x * N) cuda::store<N>(sums + i, vec);
  for (int64_t r = blockIdx.x; r < args.rows; r += gridDim.x) backward_row<T, N>(args, r, sums);
  if constexpr (kShared)
    for (int64_t i = threadIdx.x * N; i < args.cols; i += blockDim.x * N)
      cuda::store<N>(mine + i, cuda::load<N>(sums + i));
}

template <class A>
__global__ void add_partials(const A* partial, int64_t count, int64_t cols, A* dweight, bool accumulate) {
  __shared__ A group_sums[kSumGroups][kSumColumns];
  const int64_t column = blockIdx.x * static_cast<int64_t>(kSumColumns) + threadIdx.x;
  A sum = 0;
  if (column < cols)
    for (int64_t b = threadIdx.y; b < count; b += kSumGroups) sum += partial[b * cols + column];
  group_sums[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || column >= cols) return;
  for (int group = 1; group < kSumGroups; ++group) sum += group_sums[group][threadIdx.x];
  dweight[column] = accumulate ? dweight[column] + sum : sum;
}

int64_t backward_blocks(const CudaExec& exec, int64_t rows) {
  return std::clamp<int64_t>(rows, 1, int64_t{exec.sm_count} * kBackwardBlocksPerSm);
}

template <class T>
void launch_backward(const CudaExec& exec, const RmsNormBackward& args) {
  using A = Accum<T>;
  const int64_t blocks = backward_blocks(exec, args.rows), cols = args.cols;
  A* partial = Carver(args.workspace).take<A>(blocks * cols);
  const size_t shared_bytes = cols * sizeof(A);
  const bool vectors = cols % (16 / sizeof(T)) == 0 &&
                       cuda::aligned16(args.x, args.weight, args.dy, args.dx, static_cast<const void*>(partial));
  cuda::with_width<T>(vectors, [&]<int N>(std::integral_constant<int, N>) {
    const unsigned grid = static_cast<unsigned>(blocks), threads = cuda::threads_for(cuda::ceil_div(cols, N));
    if (shared_bytes + 32 * sizeof(A) <= kMaxSharedBytes)
      backward<T, N, true><<<grid, threads, shared_bytes, exec.stream>>>(args, partial);
    else
      backward<T, N, false><<<grid, threads, 0, exec.stream>>>(args, partial);
  });
  cuda::check_launch("RmsNormBackward");
  add_partials<<<static_cast<unsigned>(cuda::ceil_div(cols, kSumColumns)), dim3(kSumColumns, kSumGroups), 0,
                 exec.stream>>>(partial, blocks, cols, static_cast<A*>(args.dweight), args.accumulate_dweight);
  cuda::check_launch("RmsNormBackward's sum of dweight");
}

}  // namespace

void launch(const CudaExec& exec, const RmsNormForward& args) {
  check_args(args);
  if (args.rows == 0) return;
  visit_dtype(args.dtype, [&]<class T>(std::type_identity<T>) {
    const bool vectors = args.cols % (16 / sizeof(T)) == 0 && cuda::aligned16(args.x, args.weight, args.y);
    cuda::with_width<T>(vectors, [&]<int N>(std::integral_constant<int, N>) {
      const unsigned threads = cuda::threads_for(cuda::ceil_div(args.cols, N));
      const unsigned grid = cuda::grid_for(exec, args.rows * threads);
      forward<T, N><<<grid, threads, 0, exec.stream>>>(args, static_cast<Accum<T>>(args.eps));
    });
  });
  cuda::check_launch("RmsNormForward");
}

size_t workspace_bytes(const CudaExec& exec, const RmsNormBackward& args) {
  Carver carver(nullptr);
  visit_dtype(args.dtype, [&]<class T>(std::type_identity<T>) {
    carver.take<Accum<T>>(backward_blocks(exec, args.rows) * args.cols);
  });
  return carver.used_bytes();
}

void launch(const CudaExec& exec, const RmsNormBackward& args) {
  check_args(args, workspace_bytes(exec, args));
  visit_dtype(args.dtype, [&]<class T>(std::type_identity<T>) { launch_backward<T>(exec, args); });
}

}  // namespace xce

// Rows are held in registers between their two passes: forward by a warp, backward by a block of one vector per thread,
// several rows at once. A thread of the backward owns the same columns of every row, so that dweight adds up without
// any exchange: one partial per block, then a second kernel adds the blocks' partials in their order. Rows too wide or
// not aligned for that are read twice, the second time from the caches.
#include <limits>

#include "kernels/base/cuda_check.h"
#include "kernels/base/workspace.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/vec.cuh"
#include "kernels/rmsnorm.h"

namespace xce {
namespace {

constexpr int64_t kMaxSharedBytes = 48 << 10;  // without asking for more; wider rows add up in the workspace itself
constexpr int kBackwardBlocksPerSm = 4;        // at most: each leaves a partial dweight to add
constexpr int kHeldRows = 2;                   // that a block of the backward holds at once
constexpr int kMaxHeldThreads = 512;
constexpr int kForwardThreads = 64;              // of the forward that holds rows: small blocks end one by one
constexpr int kSumColumns = 32, kSumGroups = 8;  // the second kernel's block

// A warp to a row of at most 32 * kVecs vectors.
template <class T, int kVecs>
__global__ void __launch_bounds__(kForwardThreads, kVecs > 8 ? 8 : 16) forward_held(RmsNormForward args, Accum<T> eps) {
  using A = Accum<T>;
  constexpr int N = 16 / sizeof(T);
  const int64_t cols = args.cols, warps = gridDim.x * static_cast<int64_t>(blockDim.x / 32);
  const int lane = threadIdx.x % 32;
  const T* weight = static_cast<const T*>(args.weight);
  for (int64_t r = blockIdx.x * static_cast<int64_t>(blockDim.x / 32) + threadIdx.x / 32; r < args.rows; r += warps) {
    const T* x = static_cast<const T*>(args.x) + r * cols;
    cuda::Packed<T, N> held[kVecs];
#pragma unroll
    for (int k = 0; k < kVecs; ++k) {
      const int i = (k * 32 + lane) * N;
      held[k] = cuda::load_packed_if<N>(i < cols, x + i);
    }
    A sum = 0;
#pragma unroll
    for (int k = 0; k < kVecs; ++k) {
      const auto v = cuda::unpack(held[k]);
#pragma unroll
      for (int j = 0; j < N; ++j) sum += cuda::widen(v.at[j]) * cuda::widen(v.at[j]);
    }
    const A rstd = A(1) / sqrt(cuda::warp_sum(sum) / static_cast<A>(cols) + eps);
#pragma unroll
    for (int k = 0; k < kVecs; ++k) {
      const int i = (k * 32 + lane) * N;
      if (i >= cols) break;
      const auto w = cuda::load<N>(weight + i);
      auto v = cuda::unpack(held[k]);
#pragma unroll
      for (int j = 0; j < N; ++j) v.at[j] = cuda::narrow<T>(cuda::widen(w.at[j]) * (cuda::widen(v.at[j]) * rstd));
      cuda::store<N>(static_cast<T*>(args.y) + r * cols + i, v);
    }
    if (args.rstd && lane == 0) static_cast<A*>(args.rstd)[r] = rstd;
  }
}

// A block to a row of any width.
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

// A thread to a vector of columns: it holds the vector of kHeldRows rows, and its columns of the block's dweight. All
// loads, of what dx is added to as well, are under way before the block waits for its sums.
template <class T>
__global__ void __launch_bounds__(kMaxHeldThreads, 2) backward_held(RmsNormBackward args, Accum<T>* partial) {
  using A = Accum<T>;
  constexpr int N = 16 / sizeof(T);
  const int64_t i = threadIdx.x * N, cols = args.cols;
  const bool mine = i < cols;
  const T *x = static_cast<const T*>(args.x) + i, *dy = static_cast<const T*>(args.dy) + i;
  T* dx = static_cast<T*>(args.dx) + i;
  cuda::Packed<T, N> weight = cuda::load_packed_if<N>(mine, static_cast<const T*>(args.weight) + i);
  cuda::Vec<A, N> dweight{};
  for (int64_t first = blockIdx.x * int64_t{kHeldRows}; first < args.rows; first += gridDim.x * int64_t{kHeldRows}) {
    cuda::Packed<T, N> held_x[kHeldRows], held_dy[kHeldRows], held_dx[kHeldRows];
    A rstd[kHeldRows], means[kHeldRows];
#pragma unroll
    for (int k = 0; k < kHeldRows; ++k) {
      const int64_t r = first + k;
      held_x[k] = cuda::load_packed_if<N>(mine && r < args.rows, x + r * cols);
      held_dy[k] = cuda::load_packed_if<N>(mine && r < args.rows, dy + r * cols);
      held_dx[k] =
          cuda::load_packed_if<N>(mine && r < args.rows && args.accumulate_dx, static_cast<const T*>(dx) + r * cols);
      rstd[k] = r < args.rows ? static_cast<const A*>(args.rstd)[r] : A(0);
    }
#pragma unroll
    for (int k = 0; k < kHeldRows; ++k) {
      const auto w = cuda::unpack(weight), vx = cuda::unpack(held_x[k]), vd = cuda::unpack(held_dy[k]);
      means[k] = 0;
#pragma unroll
      for (int j = 0; j < N; ++j)
        means[k] += cuda::widen(w.at[j]) * cuda::widen(vd.at[j]) * (cuda::widen(vx.at[j]) * rstd[k]);
    }
    cuda::block_sums(means);
#pragma unroll
    for (int k = 0; k < kHeldRows; ++k) {
      const int64_t r = first + k;
      if (!mine || r >= args.rows) break;
      const auto w = cuda::unpack(weight), vd = cuda::unpack(held_dy[k]);
      auto vx = cuda::unpack(held_x[k]), before = cuda::unpack(held_dx[k]);
      const A mean = means[k] / static_cast<A>(cols);
#pragma unroll
      for (int j = 0; j < N; ++j) {
        const A xhat = cuda::widen(vx.at[j]) * rstd[k], d = cuda::widen(vd.at[j]);
        dweight.at[j] += d * xhat;
        vx.at[j] = cuda::narrow<T>(rstd[k] * (cuda::widen(w.at[j]) * d - xhat * mean) + cuda::widen(before.at[j]));
      }
      cuda::store<N>(dx + r * cols, vx);
    }
  }
  if (mine) cuda::store<N>(partial + blockIdx.x * cols + i, dweight);
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

// Fills `partial` with one dweight per block, and returns the number of blocks.
template <class T>
int64_t launch_held(const CudaExec& exec, const RmsNormBackward& args, Accum<T>* partial) {
  const int threads = static_cast<int>(cuda::ceil_div(args.cols * sizeof(T), 16 * 32) * 32);
  int resident = 0;  // blocks of an SM; more would wait for these and unbalance the rows
  XCE_CUDA_CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, backward_held<T>, threads, 0));
  const int64_t most = int64_t{exec.sm_count} * std::clamp(resident, 1, kBackwardBlocksPerSm);
  const int64_t blocks = std::clamp<int64_t>(cuda::ceil_div(args.rows, kHeldRows), 1, most);
  backward_held<T><<<static_cast<unsigned>(blocks), threads, 0, exec.stream>>>(args, partial);
  return blocks;
}
template <class T, int N>
int64_t launch_reread(const CudaExec& exec, const RmsNormBackward& args, Accum<T>* partial) {
  const int64_t blocks = backward_blocks(exec, args.rows);
  const unsigned grid = static_cast<unsigned>(blocks), threads = cuda::threads_for(cuda::ceil_div(args.cols, N));
  const size_t shared_bytes = args.cols * sizeof(Accum<T>);
  if (shared_bytes + 32 * sizeof(Accum<T>) <= kMaxSharedBytes)
    backward<T, N, true><<<grid, threads, shared_bytes, exec.stream>>>(args, partial);
  else
    backward<T, N, false><<<grid, threads, 0, exec.stream>>>(args, partial);
  return blocks;
}

template <class T>
void launch_backward(const CudaExec& exec, const RmsNormBackward& args) {
  using A = Accum<T>;
  const int64_t cols = args.cols;
  A* partial = Carver(args.workspace).take<A>(backward_blocks(exec, args.rows) * cols);
  const bool vectors = cols % (16 / sizeof(T)) == 0 &&
                       cuda::aligned16(args.x, args.weight, args.dy, args.dx, static_cast<const void*>(partial));
  int64_t blocks = 0;
  cuda::with_width<T>(vectors, [&]<int N>(std::integral_constant<int, N>) {
    bool held = N > 1 && cols <= kMaxHeldThreads * N;
    blocks = held ? launch_held<T>(exec, args, partial) : launch_reread<T, N>(exec, args, partial);
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
    const auto eps = static_cast<Accum<T>>(args.eps);
    cuda::with_width<T>(vectors, [&]<int N>(std::integral_constant<int, N>) {
      const unsigned threads = cuda::threads_for(cuda::ceil_div(args.cols, N));
      const unsigned grid = cuda::grid_for(exec, args.rows * threads);
      const auto held_grid = static_cast<unsigned>(
          std::min<int64_t>(cuda::ceil_div(args.rows * 32, kForwardThreads), std::numeric_limits<int32_t>::max()));
      if (N == 1 || args.cols > 32 * N * 16)
        forward<T, N><<<grid, threads, 0, exec.stream>>>(args, eps);
      else if (args.cols > 32 * N * 8)
        forward_held<T, 16><<<held_grid, kForwardThreads, 0, exec.stream>>>(args, eps);
      else if (args.cols > 32 * N * 2)
        forward_held<T, 8><<<held_grid, kForwardThreads, 0, exec.stream>>>(args, eps);
      else
        forward_held<T, 2><<<held_grid, kForwardThreads, 0, exec.stream>>>(args, eps);
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

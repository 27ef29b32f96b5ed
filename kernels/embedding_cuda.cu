// Forward copies rows. Backward needs neither float atomics nor a sort: the block of row r looks whether the token has
// stood in an earlier row; if not, it is the token's first row and the block adds up all of the token's rows, in row
// order. Looking reads tokens from L2: at 16,384 rows at most 64 KiB per block, far less than the rows themselves.
#include "kernels/base/cuda_check.h"
#include "kernels/cuda/fill.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/vec.cuh"
#include "kernels/embedding.h"

namespace xce {
namespace {

constexpr int kPerThread = 4;                          // tokens that a thread looks at in one go
constexpr int kStretch = cuda::kThreads * kPerThread;  // tokens that a block looks at in one go
constexpr int kList = 2 * kStretch;                    // rows that wait to be added
constexpr int kWarps = cuda::kThreads / 32;
constexpr int kInFlight = 8;  // rows that a thread loads before it adds them

template <class T, int N>
__global__ void forward(EmbeddingForward args) {
  for (int64_t r = blockIdx.x; r < args.rows; r += gridDim.x) {
    const int64_t token = args.tokens[r];
    const bool known = token >= 0 && token < args.vocab;
    const T* from = static_cast<const T*>(args.weight) + (known ? token : 0) * args.hidden;
    T* to = static_cast<T*>(args.y) + r * args.hidden;
    for (int64_t i = threadIdx.x * N; i < args.hidden; i += blockDim.x * N) {
      cuda::Vec<T, N> v{};
      if (known) v = cuda::load<N>(from + i);
      cuda::store<N>(to + i, v);
    }
  }
}

// Bit j: tokens[at + j] == token, for the thread's tokens of the stretch that begins at `begin`.
__device__ unsigned matches(const int32_t* tokens, int64_t begin, int64_t end, int32_t token) {
  const int64_t at = begin + threadIdx.x * kPerThread;
  unsigned mask = 0;
#pragma unroll
  for (int j = 0; j < kPerThread; ++j)
    if (at + j < end && tokens[at + j] == token) mask |= 1u << j;
  return mask;
}

// Appends the matching rows of a stretch to `list` in row order; returns the new length.
__device__ int append(unsigned mask, int64_t begin, int32_t* list, int length) {
  __shared__ int warp_counts[kWarps];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  int before = __popc(mask);  // becomes the matches of this thread and the lanes below
#pragma unroll
  for (int offset = 1; offset < 32; offset *= 2) {
    int other = __shfl_up_sync(~0u, before, offset);
    if (lane >= offset) before += other;
  }
  if (lane == 31) warp_counts[warp] = before;
  __syncthreads();
  int at = length + before - __popc(mask), total = length;
  for (int w = 0; w < kWarps; ++w) {
    if (w < warp) at += warp_counts[w];
    total += warp_counts[w];
  }
  for (int j = 0; j < kPerThread; ++j)
    if (mask >> j & 1) list[at++] = static_cast<int32_t>(begin + threadIdx.x * kPerThread + j);
  __syncthreads();  // the list is whole, and warp_counts free for the next call
  return total;
}

// dweight_row += the sum of the listed rows of dy, in their order. Many loads are in flight at once: a text's most
// frequent token is one block's work, and the others wait for it.
template <class T, int N>
__device__ void add_rows(const T* dy, int64_t hidden, const int32_t* list, int length, Accum<T>* dweight_row) {
  for (int64_t i = threadIdx.x * N; i < hidden; i += cuda::kThreads * N) {
    auto sum = cuda::load<N>(dweight_row + i);
    auto add = [&](cuda::Packed<T, N>& row) {
      const auto v = cuda::unpack(row);
#pragma unroll
      for (int j = 0; j < N; ++j) sum.at[j] += cuda::widen(v.at[j]);
    };
    int l = 0;
    for (; l + kInFlight <= length; l += kInFlight) {
      cuda::Packed<T, N> rows[kInFlight];
#pragma unroll
      for (int k = 0; k < kInFlight; ++k) rows[k] = cuda::load_packed<N>(dy + list[l + k] * hidden + i);
#pragma unroll
      for (int k = 0; k < kInFlight; ++k) add(rows[k]);
    }
    for (; l < length; ++l) {
      auto row = cuda::load_packed<N>(dy + list[l] * hidden + i);
      add(row);
    }
    cuda::store<N>(dweight_row + i, sum);
  }
}

template <class T, int N>
__global__ void __launch_bounds__(cuda::kThreads, 4) backward(EmbeddingBackward args) {
  __shared__ int32_t list[kList];
  const int64_t r = blockIdx.x;
  const int32_t token = args.tokens[r];
  if (token < 0 || token >= args.vocab) return;
  for (int64_t begin = 0; begin < r; begin += kStretch)
    if (__syncthreads_or(matches(args.tokens, begin, r, token))) return;
  const T* dy = static_cast<const T*>(args.dy);
  Accum<T>* dweight_row = static_cast<Accum<T>*>(args.dweight) + token * args.hidden;
  int length = 0;
  for (int64_t begin = r; begin < args.rows; begin += kStretch) {
    const unsigned mask = matches(args.tokens, begin, args.rows, token);
    if (__syncthreads_or(mask)) length = append(mask, begin, list, length);
    if (length <= kList - kStretch) continue;
    add_rows<T, N>(dy, args.hidden, list, length, dweight_row);
    length = 0;
    __syncthreads();  // every thread is done with the list
  }
  add_rows<T, N>(dy, args.hidden, list, length, dweight_row);
}

}  // namespace

void launch(const CudaExec& exec, const EmbeddingForward& args) {
  check_args(args);
  if (args.rows == 0) return;
  visit_dtype(args.dtype, [&]<class T>(std::type_identity<T>) {
    const bool vectors = args.hidden % (16 / sizeof(T)) == 0 && cuda::aligned16(args.weight, args.y);
    cuda::with_width<T>(vectors, [&]<int N>(std::integral_constant<int, N>) {
      const unsigned threads = cuda::threads_for(cuda::ceil_div(args.hidden, N));
      forward<T, N><<<cuda::grid_for(exec, args.rows * threads), threads, 0, exec.stream>>>(args);
    });
  });
  cuda::check_launch("EmbeddingForward");
}

void launch(const CudaExec& exec, const EmbeddingBackward& args) {
  check_args(args);
  XCE_CHECK(args.rows < (int64_t{1} << 31), "EmbeddingBackward.rows < 2^31", args.rows);
  visit_dtype(args.dtype, [&]<class T>(std::type_identity<T>) {
    using A = Accum<T>;
    if (!args.accumulate) cuda::fill(exec, static_cast<A*>(args.dweight), args.vocab * args.hidden, 0);
    if (args.rows == 0) return;
    const bool vectors = args.hidden % (16 / sizeof(T)) == 0 && cuda::aligned16(args.dy, args.dweight);
    cuda::with_width<T>(vectors, [&]<int N>(std::integral_constant<int, N>) {
      backward<T, N><<<static_cast<unsigned>(args.rows), cuda::kThreads, 0, exec.stream>>>(args);
    });
  });
  cuda::check_launch("EmbeddingBackward");
}

}  // namespace xce

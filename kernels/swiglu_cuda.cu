// A thread takes one vector of columns in every gridDim.y-th row.
#include "kernels/base/cuda_check.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/vec.cuh"
#include "kernels/swiglu.h"

namespace xce {
namespace {

template <class A>
__device__ A sigmoid(A x) {
  return A(1) / (A(1) + exp(-x));
}

template <class T, int N>
__global__ void forward(SwigluForward args) {
  const int64_t i = (blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x) * N;
  if (i >= args.cols) return;
  for (int64_t r = blockIdx.y; r < args.rows; r += gridDim.y) {
    const T* row = static_cast<const T*>(args.gate_up) + 2 * r * args.cols + i;
    auto gate = cuda::load<N>(row), up = cuda::load<N>(row + args.cols);
#pragma unroll
    for (int j = 0; j < N; ++j) {
      Accum<T> g = cuda::widen(gate.at[j]);
      gate.at[j] = cuda::narrow<T>(g * sigmoid(g) * cuda::widen(up.at[j]));
    }
    cuda::store<N>(static_cast<T*>(args.y) + r * args.cols + i, gate);
  }
}

// With kY dy's registers become y's: all of a thread's loads are done before it stores, so that y may be dy.
template <class T, int N, bool kY>
__global__ void backward(SwigluBackward args) {
  using A = Accum<T>;
  const int64_t i = (blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x) * N;
  if (i >= args.cols) return;
  for (int64_t r = blockIdx.y; r < args.rows; r += gridDim.y) {
    const int64_t at = 2 * r * args.cols + i;
    auto gate = cuda::load<N>(static_cast<const T*>(args.gate_up) + at);
    auto up = cuda::load<N>(static_cast<const T*>(args.gate_up) + at + args.cols);
    auto dy = cuda::load<N>(static_cast<const T*>(args.dy) + r * args.cols + i);
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const A g = cuda::widen(gate.at[j]), u = cuda::widen(up.at[j]), d = cuda::widen(dy.at[j]);
      const A s = sigmoid(g), silu = g * s;
      gate.at[j] = cuda::narrow<T>(d * u * s * (A(1) + g * (A(1) - s)));
      up.at[j] = cuda::narrow<T>(d * silu);
      if constexpr (kY) dy.at[j] = cuda::narrow<T>(silu * u);
    }
    cuda::store<N>(static_cast<T*>(args.dgate_up) + at, gate);
    cuda::store<N>(static_cast<T*>(args.dgate_up) + at + args.cols, up);
    if constexpr (kY) cuda::store<N>(static_cast<T*>(args.y) + r * args.cols + i, dy);
  }
}

dim3 grid(int64_t rows, int64_t col_vectors, unsigned threads) {
  return {static_cast<unsigned>(cuda::ceil_div(col_vectors, threads)),
          static_cast<unsigned>(std::min(rows, cuda::kMaxGridY))};
}

}  // namespace

void launch(const CudaExec& exec, const SwigluForward& args) {
  check_args(args);
  if (args.rows == 0) return;
  visit_dtype(args.dtype, [&]<class T>(std::type_identity<T>) {
    const bool vectors = args.cols % (16 / sizeof(T)) == 0 && cuda::aligned16(args.gate_up, args.y);
    cuda::with_width<T>(vectors, [&]<int N>(std::integral_constant<int, N>) {
      const unsigned threads = cuda::threads_for(args.cols / N);
      forward<T, N><<<grid(args.rows, args.cols / N, threads), threads, 0, exec.stream>>>(args);
    });
  });
  cuda::check_launch("SwigluForward");
}

void launch(const CudaExec& exec, const SwigluBackward& args) {
  check_args(args);
  if (args.rows == 0) return;
  visit_dtype(args.dtype, [&]<class T>(std::type_identity<T>) {
    const bool vectors =
        args.cols % (16 / sizeof(T)) == 0 && cuda::aligned16(args.gate_up, args.dy, args.dgate_up, args.y);
    cuda::with_width<T>(vectors, [&]<int N>(std::integral_constant<int, N>) {
      const unsigned threads = cuda::threads_for(args.cols / N);
      auto* kernel = args.y ? backward<T, N, true> : backward<T, N, false>;
      kernel<<<grid(args.rows, args.cols / N, threads), threads, 0, exec.stream>>>(args);
    });
  });
  cuda::check_launch("SwigluBackward");
}

}  // namespace xce

// A thread rotates one vector of a head's first half with its partners in the second, in every gridDim.y-th row.
#include "kernels/base/cuda_check.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/vec.cuh"
#include "kernels/rope.h"

namespace xce {
namespace {

template <class T, int N>
__global__ void rotate(Rope args) {
  using A = Accum<T>;
  const int64_t half = args.head_dim / 2, vectors = half / N;
  const int64_t unit = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x;
  if (unit >= args.heads * vectors) return;
  const int64_t head = unit / vectors, i = unit % vectors * N;
  const A sign = args.inverse ? A(-1) : A(1);
  for (int64_t r = blockIdx.y; r < args.rows; r += gridDim.y) {
    T* x = static_cast<T*>(args.x) + r * args.row_stride + head * args.head_dim + i;
    const A* table = static_cast<const A*>(args.table) + (r % args.seq_len) * args.head_dim + 2 * i;
    auto first = cuda::load<N>(x), second = cuda::load<N>(x + half);
    const auto cos_sin = cuda::load<2 * N>(table);
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const A a = cuda::widen(first.at[j]), b = cuda::widen(second.at[j]);
      const A c = cos_sin.at[2 * j], s = sign * cos_sin.at[2 * j + 1];
      first.at[j] = cuda::narrow<T>(a * c - b * s);
      second.at[j] = cuda::narrow<T>(b * c + a * s);
    }
    cuda::store<N>(x, first);
    cuda::store<N>(x + half, second);
  }
}

}  // namespace

void launch(const CudaExec& exec, const Rope& args) {
  check_args(args);
  if (args.rows == 0) return;
  visit_dtype(args.dtype, [&]<class T>(std::type_identity<T>) {
    const int64_t half = args.head_dim / 2, width = 16 / sizeof(T);
    const bool vectors = half % width == 0 && args.row_stride % width == 0 && cuda::aligned16(args.x, args.table);
    cuda::with_width<T>(vectors, [&]<int N>(std::integral_constant<int, N>) {
      const int64_t units = args.heads * (half / N);
      const unsigned threads = cuda::threads_for(units);
      const dim3 grid(static_cast<unsigned>(cuda::ceil_div(units, threads)),
                      static_cast<unsigned>(std::min(args.rows, cuda::kMaxGridY)));
      rotate<T, N><<<grid, threads, 0, exec.stream>>>(args);
    });
  });
  cuda::check_launch("Rope");
}

}  // namespace xce

// One pass over the arena. Everything that changes from step to step is read from *state on the device; each block
// makes the step's scalars once, in fp64.
#include "kernels/adamw.h"
#include "kernels/base/cuda_check.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/vec.cuh"

namespace xce {
namespace {

// W elements from i, all of one block of AdamW::kBlock.
template <class T, bool kCompute, int W>
__device__ void update_at(const AdamW& args, const AdamWScalars<Accum<T>>& s, int64_t i) {
  using A = Accum<T>;
  A* master = static_cast<A*>(args.master) + i;
  A *m = static_cast<A*>(args.m) + i, *v = static_cast<A*>(args.v) + i;
  auto vw = cuda::load<W>(master), vm = cuda::load<W>(m), vv = cuda::load<W>(v);
  const auto vg = cuda::load<W>(static_cast<const A*>(args.grad) + i);
  const A shrink = s.lr * static_cast<A>(args.decay[i / AdamW::kBlock]);
  cuda::Vec<T, W> rounded;
#pragma unroll
  for (int j = 0; j < W; ++j) {
    adamw_update(s, shrink, vg.at[j], vw.at[j], vm.at[j], vv.at[j]);
    rounded.at[j] = cuda::narrow<T>(vw.at[j]);
  }
  cuda::store<W>(master, vw);
  cuda::store<W>(m, vm);
  cuda::store<W>(v, vv);
  if constexpr (kCompute) cuda::store<W>(static_cast<T*>(args.compute) + i, rounded);
}

template <class T, bool kCompute, int N>
__global__ void update(AdamW args) {
  static_assert(AdamW::kBlock % N == 0);
  if (!args.state->apply || args.state->updates < 1) return;
  __shared__ AdamWScalars<Accum<T>> s;
  if (threadIdx.x == 0) s = adamw_scalars<Accum<T>>(args);
  __syncthreads();
  cuda::for_each_vector<N>(
      args.n, [&]<int W>(std::integral_constant<int, W>, int64_t i) { update_at<T, kCompute, W>(args, s, i); });
}

}  // namespace

void launch(const CudaExec& exec, const AdamW& args) {
  check_args(args);
  if (args.n == 0) return;
  visit_dtype(args.dtype, [&]<class T>(std::type_identity<T>) {
    const bool vectors = cuda::aligned16(args.master, args.m, args.v, args.grad, args.compute);
    cuda::with_width<Accum<T>>(vectors, [&]<int N>(std::integral_constant<int, N>) {
      const unsigned grid = cuda::grid_for(exec, cuda::ceil_div(args.n, N));
      if (args.compute)
        update<T, true, N><<<grid, cuda::kThreads, 0, exec.stream>>>(args);
      else
        update<T, false, N><<<grid, cuda::kThreads, 0, exec.stream>>>(args);
    });
  });
  cuda::check_launch("AdamW");
}

}  // namespace xce

// Two stages: blocks whose number depends on n alone add up their strides in fp64, one block adds the blocks' sums. The
// same bits on every GPU.
#include <algorithm>

#include "kernels/base/cuda_check.h"
#include "kernels/base/workspace.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/vec.cuh"
#include "kernels/norm2.h"

namespace xce {
namespace {

constexpr int64_t kElementsPerBlock = 16384;  // at least, before a second block starts
constexpr int64_t kMaxBlocks = 1024;

int64_t block_count(int64_t n) {
  return std::min(cuda::ceil_div(n, kElementsPerBlock), kMaxBlocks);
}

template <class T, int N>
__global__ void block_sums(const T* x, int64_t n, double* sums) {
  double sum = 0;
  cuda::for_each_vector<N>(n, [&]<int W>(std::integral_constant<int, W>, int64_t i) {
    auto v = cuda::load<W>(x + i);
#pragma unroll
    for (int j = 0; j < W; ++j) {
      double value = cuda::widen(v.at[j]);
      sum += value * value;
    }
  });
  sum = cuda::block_sum(sum);
  if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

__global__ void total(const double* sums, int64_t count, double* out, bool accumulate) {
  double sum = 0;
  for (int64_t i = threadIdx.x; i < count; i += blockDim.x) sum += sums[i];
  sum = cuda::block_sum(sum);
  if (threadIdx.x == 0) *out = accumulate ? *out + sum : sum;
}

}  // namespace

size_t workspace_bytes(const CudaExec&, const Norm2& args) {
  Carver carver(nullptr);
  carver.take<double>(block_count(args.n));
  return carver.used_bytes();
}

void launch(const CudaExec& exec, const Norm2& args) {
  check_args(args, workspace_bytes(exec, args));
  const int64_t blocks = block_count(args.n);
  double* sums = Carver(args.workspace).take<double>(blocks);
  if (blocks > 0) {
    visit_dtype(args.dtype, [&]<class T>(std::type_identity<T>) {
      cuda::with_width<T>(cuda::aligned16(args.x), [&]<int N>(std::integral_constant<int, N>) {
        block_sums<T, N><<<static_cast<unsigned>(blocks), cuda::kThreads, 0, exec.stream>>>(
            static_cast<const T*>(args.x), args.n, sums);
      });
    });
    cuda::check_launch("Norm2's block sums");
  }
  total<<<1, cuda::kThreads, 0, exec.stream>>>(sums, blocks, args.out, args.accumulate);
  cuda::check_launch("Norm2's total");
}

}  // namespace xce

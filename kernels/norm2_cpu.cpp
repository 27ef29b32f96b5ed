// Blocks of fixed size, one fp64 sum each; the block sums are added in order by one thread.
#include "kernels/norm2.h"

#include <algorithm>

#include "kernels/base/workspace.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/vec.h"

namespace xce {
namespace {

constexpr int64_t kBlock = 4096;

int64_t block_count(int64_t n) {
  return (n + kBlock - 1) / kBlock;
}

template <class T>
double block_sum(const T* x, int64_t n) {
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; ++i) {
    double value = cpu::load(x, i);
    sum += value * value;
  }
  return sum;
}

}  // namespace

size_t workspace_bytes(const CpuExec&, const Norm2& args) {
  Carver carver(nullptr);
  carver.take<double>(block_count(args.n));
  return carver.used_bytes();
}

void check_args(const Norm2& args, size_t needed_workspace_bytes) {
  XCE_CHECK(args.n >= 0, "Norm2.n >= 0", args.n);
  XCE_CHECK(args.out, "Norm2.out not null", "null");
  XCE_CHECK(args.n == 0 || (args.x && args.workspace), "Norm2.x and .workspace not null", "null");
  XCE_CHECK(args.workspace_size_bytes >= needed_workspace_bytes,
            str("Norm2.workspace_size_bytes >= ", needed_workspace_bytes), args.workspace_size_bytes);
}

void launch(const CpuExec& exec, const Norm2& args) {
  check_args(args, workspace_bytes(exec, args));
  const int64_t blocks = block_count(args.n);
  double* sums = Carver(args.workspace).take<double>(blocks);
  visit_dtype(args.dtype, [&]<class T>(std::type_identity<T>) {
    const T* x = static_cast<const T*>(args.x);
    parallel_for(exec, blocks, cpu::row_grain(kBlock), [&](int64_t begin, int64_t end, int) {
      for (int64_t b = begin; b < end; ++b) sums[b] = block_sum(x + b * kBlock, std::min(kBlock, args.n - b * kBlock));
    });
  });
  double total = args.accumulate ? *args.out : 0.0;
  for (int64_t b = 0; b < blocks; ++b) total += sums[b];
  *args.out = total;
}

}  // namespace xce

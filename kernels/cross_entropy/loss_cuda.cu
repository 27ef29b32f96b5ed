// Counting targets, merging shards' row statistics, the loss from merged ones, and sums of rows' losses: O(rows), sums
// by one block in a fixed order.
#include "kernels/cross_entropy/loss.h"

#include "kernels/cross_entropy/rows_cuda.cuh"

namespace xce {
namespace {

constexpr int kSumThreads = 1024;

__device__ loss::Totals count_rows(const LossTargets& targets, int64_t rows, int64_t vocab_global) {
  long long counts[2] = {0, 0};
  for (int64_t i = threadIdx.x; i < rows; i += blockDim.x) {
    const int64_t label = loss::device_label(targets, i);
    if (label != targets.ignore_index) ++counts[loss::in_vocab(label, vocab_global) ? 0 : 1];
  }
  cuda::block_sums(counts);
  loss::Totals totals;
  totals.n_valid = counts[0], totals.out_of_range = counts[1];
  return totals;
}

__global__ void __launch_bounds__(kSumThreads)
    count_kernel(LossTargets targets, int64_t rows, int64_t vocab_global, loss::Totals* to) {
  const loss::Totals totals = count_rows(targets, rows, vocab_global);
  if (threadIdx.x == 0) *to = totals;
}

template <class V>
__device__ void put(V* to, int64_t value, bool accumulate) {
  if (to) *to = (accumulate ? *to : V(0)) + static_cast<V>(value);
}
__global__ void __launch_bounds__(kSumThreads) loss_count(LossCount args) {
  const loss::Totals totals = count_rows(args.targets, args.rows, args.vocab_global);
  if (threadIdx.x != 0) return;
  put(args.n_valid, totals.n_valid, args.accumulate);
  put(args.weight_sum, totals.n_valid, args.accumulate);
  put(args.out_of_range, totals.out_of_range, args.accumulate);
}

template <class A>
__global__ void __launch_bounds__(kSumThreads)
    sum_kernel(const double* row_loss, const double* row_z_loss, int64_t rows, loss::Totals* totals, bool last,
               LossOptions options, LossOutputs out) {
  double sums[2] = {0, 0};
  for (int64_t i = threadIdx.x; i < rows; i += blockDim.x) sums[0] += row_loss[i], sums[1] += row_z_loss[i];
  cuda::block_sums(sums);
  if (threadIdx.x != 0) return;
  totals->loss += sums[0], totals->z_loss += sums[1];
  if (last) loss::store_totals<A>(out, options, *totals);
}

template <class A>
__global__ void __launch_bounds__(cuda::kThreads) merge(LossMergeStatistics args) {
  const int64_t i = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x;
  if (i >= args.rows) return;
  loss::Part<double> all = loss::Part<double>::empty();
  double target = 0;
  for (int64_t k = 0; k < args.count; ++k) {
    const A* set = static_cast<const A*>(args.sets) + 3 * args.rows * k;
    all.merge({static_cast<double>(set[i]), static_cast<double>(set[args.rows + i])});
    target += set[2 * args.rows + i];
  }
  A* merged = static_cast<A*>(args.merged);
  merged[i] = static_cast<A>(all.max);
  merged[args.rows + i] = static_cast<A>(all.sum);
  merged[2 * args.rows + i] = static_cast<A>(target);
}

template <class A>
__global__ void __launch_bounds__(kSumThreads) from_statistics(LossFromStatistics args) {
  const A* set = static_cast<const A*>(args.statistics);
  loss::Totals totals = count_rows(args.targets, args.rows, args.vocab_global);
  double sums[2] = {0, 0};
  for (int64_t i = threadIdx.x; i < args.rows; i += blockDim.x) {
    if (!loss::is_valid(args.targets, loss::device_label(args.targets, i), args.vocab_global)) {
      loss::store_row<A>(args.out, i, nullptr);
      continue;
    }
    const loss::RowLoss row = loss::row_loss(set[i], set[args.rows + i], set[2 * args.rows + i], args.options.z_loss);
    sums[0] += row.loss, sums[1] += row.z_loss;
    loss::store_row<A>(args.out, i, &row);
  }
  cuda::block_sums(sums);
  totals.loss = sums[0], totals.z_loss = sums[1];
  if (threadIdx.x == 0) loss::store_totals<A>(args.out, args.options, totals);
}

template <class F>
void visit_accum(DType dtype, F&& f) {
  if (accum_dtype(dtype) == DType::kF64)
    f(std::type_identity<double>{});
  else
    f(std::type_identity<float>{});
}

}  // namespace

void loss::count_on_device(const CudaExec& exec, const LossTargets& targets, int64_t rows, int64_t vocab_global,
                           Totals* totals) {
  count_kernel<<<1, kSumThreads, 0, exec.stream>>>(targets, rows, vocab_global, totals);
  cuda::check_launch("count of targets");
}

void loss::sum_losses(const CudaExec& exec, DType dtype, const double* row_loss, const double* row_z_loss, int64_t rows,
                      Totals* totals, bool last, const LossOptions& options, const LossOutputs& out) {
  visit_accum(dtype, [&]<class A>(std::type_identity<A>) {
    sum_kernel<A><<<1, kSumThreads, 0, exec.stream>>>(row_loss, row_z_loss, rows, totals, last, options, out);
  });
  cuda::check_launch("sum of losses");
}

void launch(const CudaExec& exec, const LossCount& args) {
  loss_count<<<1, kSumThreads, 0, exec.stream>>>(args);
  cuda::check_launch("LossCount");
}

void launch(const CudaExec& exec, const LossMergeStatistics& args) {
  XCE_CHECK(args.count >= 1, "LossMergeStatistics.count >= 1", args.count);
  if (args.rows == 0) return;
  visit_accum(args.dtype, [&]<class A>(std::type_identity<A>) {
    merge<A><<<loss::row_grid(cuda::ceil_div(args.rows, cuda::kThreads)), cuda::kThreads, 0, exec.stream>>>(args);
  });
  cuda::check_launch("LossMergeStatistics");
}

void launch(const CudaExec& exec, const LossFromStatistics& args) {
  loss::check(args.options);
  visit_accum(args.dtype,
              [&]<class A>(std::type_identity<A>) { from_statistics<A><<<1, kSumThreads, 0, exec.stream>>>(args); });
  cuda::check_launch("LossFromStatistics");
}

}  // namespace xce

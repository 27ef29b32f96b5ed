// Counting targets, merging row statistics, the loss from merged ones, and sums of rows' losses: O(rows), sums by one
// block in a fixed order.
#include "kernels/cross_entropy/loss.h"

#include "kernels/base/cuda_check.h"
#include "kernels/cross_entropy/rows_cuda.cuh"

namespace xce {
namespace {

using loss::DeviceCall;
using loss::RowTarget;
using loss::Totals;

constexpr int kSumThreads = 1024;
constexpr int kTogether = 4;                // rows of a thread whose loads are under way at once
constexpr double kScaleHeadroom = 0x1p-10;  // fp16 reaches from 2^-14 to 2^16

template <class A>
__device__ RowTarget target_of(const DeviceCall& call, int64_t i) {
  return loss::row_target<A>(call.targets, call.options, call.vocab_global, i);
}

// The counts of all rows, in every thread.
template <class A>
__device__ Totals count_rows(const DeviceCall& call) {
  Totals mine;
  for (int64_t at = threadIdx.x; at < call.rows; at += kTogether * blockDim.x) {
    RowTarget targets[kTogether];
#pragma unroll
    for (int u = 0; u < kTogether; ++u)
      if (at + u * blockDim.x < call.rows) targets[u] = target_of<A>(call, at + u * blockDim.x);
#pragma unroll
    for (int u = 0; u < kTogether; ++u)
      if (at + u * blockDim.x < call.rows) loss::count_row<A>(mine, call.options, targets[u], at + u * blockDim.x);
  }
  const bool sums_weights = call.options.label_smoothing != 0 && call.targets.index && call.options.class_weights;
  if (sums_weights) {
    const A* weights = static_cast<const A*>(call.options.class_weights);
#pragma unroll 8
    for (int64_t v = threadIdx.x; v < call.vocab_global; v += blockDim.x)
      mine.class_weights += static_cast<double>(weights[v]);
  }
  double weights[2] = {mine.weight_sum, mine.class_weights};
  cuda::block_sums(weights);
  long long counts[2] = {mine.n_valid, mine.out_of_range};
  cuda::block_sums(counts);
  constexpr long long kNone = INT64_MAX;
  const long long first = cuda::block_min<long long>(mine.first_out_of_range < 0 ? kNone : mine.first_out_of_range);
  Totals all;
  all.n_valid = counts[0], all.out_of_range = counts[1];
  all.first_out_of_range = first == kNone ? -1 : first;
  all.weight_sum = weights[0];
  all.class_weights = sums_weights ? weights[1] : static_cast<double>(call.vocab_global);
  return all;
}

// A power of two near 2^-10 of the largest |gradient| of a logit, with the z-loss of a row whose |lse| is 2^8: fp16 has
// room for 2^14.
template <class A>
__device__ float gradient_scale(const DeviceCall& call, const Totals& totals) {
  const double d = loss::denominator(call.options, totals);
  double largest = 0;
  for (int64_t i = threadIdx.x; d != 0 && i < call.rows; i += blockDim.x) {
    const RowTarget target = target_of<A>(call, i);
    if (!target.valid) continue;
    const double g = loss::row_factor<A>(call.upstream, call.options, target.token_weight, d, i);
    const double mass = target.label == loss::kNoLabel
                            ? 1
                            : loss::mass_of<A>(call.options, totals, target.label, call.vocab_global).total;
    const double size = fabs(g) * (fabs(mass) + 2 * 0x1p8 * fabs(call.options.z_loss));
    if (isfinite(size)) largest = fmax(largest, size);
  }
  largest = cuda::block_max(largest);
  if (largest == 0) return 1;
  return static_cast<float>(exp2(fmin(fmax(ceil(log2(largest * kScaleHeadroom)), -100.0), 100.0)));
}

template <class A>
__global__ void __launch_bounds__(kSumThreads) count_kernel(DeviceCall call) {
  const Totals totals = count_rows<A>(call);
  float scale = 1;
  if (call.gradient_scale) scale = gradient_scale<A>(call, totals);
  if (threadIdx.x != 0) return;
  *call.totals = totals;
  if (call.gradient_scale) *call.gradient_scale = scale;
}

template <class V>
__device__ void put(V* to, V value, bool accumulate) {
  if (to) *to = (accumulate ? *to : V(0)) + value;
}
template <class A>
__global__ void __launch_bounds__(kSumThreads) loss_count(LossCount args, DeviceCall call) {
  const Totals totals = count_rows<A>(call);
  if (threadIdx.x != 0) return;
  put(args.n_valid, totals.n_valid, args.accumulate);
  put(args.weight_sum, totals.weight_sum, args.accumulate);
  put(args.out_of_range, totals.out_of_range, args.accumulate);
  if (args.first_out_of_range && !(args.accumulate && *args.first_out_of_range >= 0))
    *args.first_out_of_range = totals.first_out_of_range;
}

template <class A>
__global__ void __launch_bounds__(kSumThreads) sum_kernel(DeviceCall call, loss::RowSums rows) {
  double sums[2] = {0, 0};
  const bool has_z_loss = call.options.z_loss != 0;
  for (int64_t at = threadIdx.x; at < rows.rows; at += kTogether * blockDim.x) {
    double loss[kTogether]{}, z_loss[kTogether]{};
#pragma unroll
    for (int u = 0; u < kTogether; ++u) {
      const int64_t i = at + u * blockDim.x;
      if (i < rows.rows) loss[u] = rows.loss[i];
      if (i < rows.rows && has_z_loss) z_loss[u] = rows.z_loss[i];
    }
#pragma unroll
    for (int u = 0; u < kTogether; ++u) sums[0] += loss[u], sums[1] += z_loss[u];
  }
  Totals counts;
  if (rows.count) counts = count_rows<A>(call);
  cuda::block_sums(sums);
  if (threadIdx.x != 0) return;
  Totals& totals = *call.totals;
  if (rows.count) totals = counts;
  totals.loss += sums[0], totals.z_loss += sums[1];
  if (rows.last) loss::store_totals<A>(call.out, call.options, totals);
}

__global__ void __launch_bounds__(cuda::kThreads) merge(LossMergeStatistics args) {
  const int64_t i = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x;
  if (i >= args.rows) return;
  loss::RowStatistics all;
  for (int64_t k = 0; k < args.count; ++k)
    all.merge(loss::RowStatistics::load(args.sets + kLossStatistics * args.rows * k, args.rows, i));
  all.store(args.merged, args.rows, i);
}

template <class A>
__global__ void __launch_bounds__(kSumThreads) from_statistics(DeviceCall call, const double* statistics) {
  Totals totals = count_rows<A>(call);
  double sums[2] = {0, 0};
  long long correct[1] = {0};
  for (int64_t i = threadIdx.x; i < call.rows; i += blockDim.x) {
    const RowTarget target = target_of<A>(call, i);
    if (!target.valid) {
      loss::store_row<A>(call.options, call.out, i, target, nullptr);
      continue;
    }
    const auto s = loss::RowStatistics::load(statistics, call.rows, i);
    const loss::Mass mass = loss::mass_of<A>(call.options, totals, target.label, call.vocab_global);
    const loss::RowLoss row = loss::row_loss(s, mass, target.token_weight, call.options.z_loss);
    sums[0] += row.loss, sums[1] += row.z_loss;
    correct[0] += target.label != loss::kNoLabel && row.argmax == target.label ? 1 : 0;
    loss::store_row<A>(call.options, call.out, i, target, &row);
  }
  cuda::block_sums(sums);
  cuda::block_sums(correct);
  totals.loss = sums[0], totals.z_loss = sums[1], totals.n_correct = correct[0];
  if (threadIdx.x == 0) loss::store_totals<A>(call.out, call.options, totals);
}

template <class F>
void visit_accum(DType dtype, F&& f) {
  if (accum_dtype(dtype) == DType::kF64)
    f(std::type_identity<double>{});
  else
    f(std::type_identity<float>{});
}

}  // namespace

void loss::launch_counts(const CudaExec& exec, const DeviceCall& call) {
  visit_accum(call.dtype,
              [&]<class A>(std::type_identity<A>) { count_kernel<A><<<1, kSumThreads, 0, exec.stream>>>(call); });
  cuda::check_launch("count of targets");
}

void loss::launch_sums(const CudaExec& exec, const DeviceCall& call, const RowSums& sums) {
  visit_accum(call.dtype,
              [&]<class A>(std::type_identity<A>) { sum_kernel<A><<<1, kSumThreads, 0, exec.stream>>>(call, sums); });
  cuda::check_launch("sum of losses");
}

void launch(const CudaExec& exec, const LossCount& args) {
  DeviceCall call{.targets = args.targets, .dtype = args.dtype, .rows = args.rows, .vocab_global = args.vocab_global};
  call.options.class_weights = args.class_weights;
  call.options.token_weights = args.token_weights;
  // As below: the probabilities, of a shard perhaps, are not read.
  loss::check(call.targets, call.options, call.out, call.rows, 0);
  visit_accum(args.dtype,
              [&]<class A>(std::type_identity<A>) { loss_count<A><<<1, kSumThreads, 0, exec.stream>>>(args, call); });
  cuda::check_launch("LossCount");
}

void launch(const CudaExec& exec, const LossMergeStatistics& args) {
  XCE_CHECK(args.count >= 1, "LossMergeStatistics.count >= 1", args.count);
  if (args.rows == 0) return;
  merge<<<loss::row_grid(cuda::ceil_div(args.rows, cuda::kThreads)), cuda::kThreads, 0, exec.stream>>>(args);
  cuda::check_launch("LossMergeStatistics");
}

void launch(const CudaExec& exec, const LossFromStatistics& args) {
  const DeviceCall call{.targets = args.targets,
                        .options = args.options,
                        .out = args.out,
                        .dtype = args.dtype,
                        .rows = args.rows,
                        .vocab_global = args.vocab_global};
  // The probabilities themselves are not read here, so their leading dimension says nothing.
  loss::check(args.targets, args.options, args.out, args.rows, 0);
  visit_accum(args.dtype, [&]<class A>(std::type_identity<A>) {
    from_statistics<A><<<1, kSumThreads, 0, exec.stream>>>(call, args.statistics);
  });
  cuda::check_launch("LossFromStatistics");
}

}  // namespace xce

// The kernels of rows of logits, one block to a row, and their launches: statistics, losses from them, gradients, and
// all of a row at once.
#pragma once

#include "kernels/base/cuda_check.h"
#include "kernels/cross_entropy/row_gradient_cuda.cuh"
#include "kernels/cross_entropy/row_held_cuda.cuh"
#include "kernels/cross_entropy/row_loss_cuda.cuh"
#include "kernels/cross_entropy/row_statistics_cuda.cuh"

namespace xce::loss {

template <bool kGeneral, class In, int W>
constexpr int kStatisticsBatch = kBatch<In, W, kGeneral ? 64 : 128>;

enum class Statistics { kFirst, kMore, kWhole };

// Each row's statistics of its columns here: stored (kFirst), joined with what `set` holds (kMore), or, of the whole
// vocabulary, made a loss at once; then `set` may be null.
template <int W, bool kGeneral, class In, class Out>
__global__ void __launch_bounds__(kRowThreads<kGeneral>, 1024 / kRowThreads<kGeneral>)
    row_statistics(DeviceRows<In, Out> r, StatisticsView set, Statistics what) {
  const int64_t i = blockIdx.x;
  const RowTarget target = r.target(i);
  RowStatistics s;
  double logit = 0;
  if (target.valid) {
    if (threadIdx.x == 0) logit = target_logit(r, i, target);
    Raw<In, W> raw[kStatisticsBatch<kGeneral, In, W>];
    s = block_statistics<kGeneral>(r, i, raw);
    s.target = logit;
  }
  if (threadIdx.x != 0) return;
  if (what == Statistics::kMore) {
    RowStatistics before = set.load(i);
    before.merge(s);
    s = before;
  }
  if (set.data) set.store(i, s);
  if (what != Statistics::kWhole) return;
  if (!target.valid) return store_loss(r, i, target, nullptr);
  const RowLoss row = loss_of<kGeneral>(r, target, s);
  store_loss(r, i, target, &row);
}

// O(rows): losses and residual from statistics of the whole row.
template <class In, class Out>
__global__ void row_losses(DeviceRows<In, Out> r, StatisticsView set) {
  const int64_t i = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x;
  if (i >= r.rows) return;
  const RowTarget target = r.target(i);
  if (!target.valid) return store_loss(r, i, target, nullptr);
  const RowStatistics s = set.load(i);
  const RowLoss row = loss_of<true>(r, target, s);
  if (r.offset) r.offset[i] = static_cast<Accum<Out>>(row.offset), r.logsum[i] = static_cast<Accum<Out>>(row.logsum);
  if (r.mass) r.mass[i] = s.mass;
  store_loss(r, i, target, &row);
}

// S of probabilities over `cols` columns.
template <class In, class Out>
__global__ void __launch_bounds__(kRowThreads<true>) row_masses(DeviceRows<In, Out> r, int64_t cols) {
  const int64_t i = blockIdx.x;
  if (!r.target(i).valid) return;
  const double mass = column_mass(r, i, cols);
  if (threadIdx.x == 0) r.mass[i] = mass;
}

// Gradients from logits and residual.
template <int W, bool kGeneral, class In, class Out>
__global__ void __launch_bounds__(kRowThreads<kGeneral>, 1024 / kRowThreads<kGeneral>)
    row_gradients(DeviceRows<In, Out> r) {
  const int64_t i = blockIdx.x;
  const RowTarget target = r.target(i);
  const double d = denominator(r.options, *r.totals);
  if (d == 0) zero_input(r, i);
  if (d == 0 || !target.valid) return zero_gradient<W>(r, i, of_block());
  Raw<In, W> raw[kGradientBatch<In, W>];
  const RowSpan<W> span(r, i, of_block());
  load_batch(raw, r.logits + i * r.ld, span, span.first(span.head));
  const double lse = static_cast<double>(r.offset[i]) + static_cast<double>(r.logsum[i]);
  const double total = total_mass<kGeneral>(r, target, i);
  const RowGradient<Out, kGeneral> gradient(r, target, factor_of(r, target, d, i), lse, total);
  GradientWriter<W, kGeneral, In, Out>(r, gradient, i, of_block()).write_from_first(raw);
}

// All of a whole row: statistics, loss, gradient.
template <int W, bool kGeneral, class In, class Out>
__global__ void __launch_bounds__(kRowThreads<kGeneral>, 1) row_losses_and_gradients(DeviceRows<In, Out> r) {
  using A = Accum<Out>;
  const int64_t i = blockIdx.x;
  const RowTarget target = r.target(i);
  const double d = denominator(r.options, *r.totals);
  if (d == 0) zero_input(r, i);
  if (!target.valid) {
    if (threadIdx.x == 0) store_loss(r, i, target, nullptr);
    return zero_gradient<W>(r, i, of_block());
  }
  __shared__ RowStatistics kept;  // by one thread, until the others have their work
  double logit = 0;
  if (threadIdx.x == 0) logit = target_logit(r, i, target);
  Raw<In, W> raw[kStatisticsBatch<kGeneral, In, W>];
  RowStatistics s = block_statistics<kGeneral>(r, i, raw);
  s.target = logit;
  if (threadIdx.x == 0) kept = s;
  if (d == 0) {
    zero_gradient<W>(r, i, of_block());
  } else {
    const A logsum = log(static_cast<A>(s.sum));
    const RowGradient<Out, kGeneral> gradient(r, target, factor_of(r, target, d, i),
                                              s.max + static_cast<double>(logsum),
                                              kGeneral ? s.mass : total_mass<false>(r, target, i));
    GradientWriter<W, kGeneral, In, Out> writer(r, gradient, i, of_block());
    if constexpr (sizeof(Out) < sizeof(In))
      writer.write();
    else
      writer.write_from_last(raw);
  }
  if (threadIdx.x != 0) return;
  const RowLoss row = loss_of<kGeneral>(r, target, kept);
  store_loss(r, i, target, &row);
}

// f.template operator()<W, kGeneral>(): the width at which rows of logits and gradients may be read and written, and
// the variant. Logits and gradients of one type have any alignment, when it is the same.
template <class In, class Out, class F>
void with_row_variant(const DeviceRows<In, Out>& r, F&& f) {
  XCE_CHECK(r.cols < (int64_t{1} << 30), "fewer than 2^30 columns at a time", r.cols);
  constexpr int kWide = 16 / sizeof(Out);
  if constexpr (kWide > 2) {
    bool wide = false;
    if constexpr (sizeof(In) == sizeof(Out)) {
      const auto apart = reinterpret_cast<uintptr_t>(r.logits) - reinterpret_cast<uintptr_t>(r.dlogits);
      wide = !r.dlogits || (apart % 16 == 0 && (r.ld - r.ld_out) % kWide == 0);
    } else {
      wide = cuda::aligned16(r.logits, r.dlogits) && r.ld % kWide == 0 && r.ld_out % kWide == 0;
    }
    if (wide && !is_general(r)) return f.template operator()<kWide, false>();
    if (wide) return f.template operator()<kWide, true>();
  }
  f.template operator()<1, true>();
}
// Threads of a block of the pass over a row of so many bytes. For statistics few, because several rows to an SM hide
// the reductions at their ends; for gradients many, so that fewer rows are under way at once.
template <class In, class Out>
int64_t row_bytes(const DeviceRows<In, Out>& r) {
  return r.cols * static_cast<int64_t>(sizeof(In));
}
inline unsigned statistics_threads(int64_t bytes) {
  return bytes >= 192 * 1024 ? 256 : 128;
}
template <bool kGeneral>
unsigned gradient_threads(int64_t bytes) {
  return bytes >= 192 * 1024 ? kRowThreads<kGeneral> : bytes >= 48 * 1024 ? 512 : bytes >= 16 * 1024 ? 256 : 128;
}

template <class In, class Out>
void launch_statistics(const CudaExec& exec, const DeviceRows<In, Out>& r, const StatisticsView& set, Statistics what) {
  if (r.rows == 0) return;
  with_row_variant(r, [&]<int W, bool kGeneral> {
    row_statistics<W, kGeneral><<<row_grid(r.rows), statistics_threads(row_bytes(r)), 0, exec.stream>>>(r, set, what);
  });
  cuda::check_launch("row statistics");
}
template <class In, class Out>
void launch_losses(const CudaExec& exec, const DeviceRows<In, Out>& r, const StatisticsView& set) {
  if (r.rows == 0) return;
  row_losses<<<row_grid(cuda::ceil_div(r.rows, 128)), 128, 0, exec.stream>>>(r, set);
  cuda::check_launch("row losses");
}
// r.mass of probabilities, where no statistics come first and the columns come in several launches.
template <class In, class Out>
void launch_masses(const CudaExec& exec, const DeviceRows<In, Out>& r, int64_t cols) {
  if (r.rows == 0) return;
  row_masses<<<row_grid(r.rows), kRowThreads<true>, 0, exec.stream>>>(r, cols);
  cuda::check_launch("row masses");
}
template <class In, class Out>
void launch_gradients(const CudaExec& exec, const DeviceRows<In, Out>& r) {
  if (r.rows == 0) return;
  with_row_variant(r, [&]<int W, bool kGeneral> {
    row_gradients<W, kGeneral><<<row_grid(r.rows), gradient_threads<kGeneral>(row_bytes(r)), 0, exec.stream>>>(r);
  });
  cuda::check_launch("row gradients");
}
template <class In, class Out>
void launch_losses_and_gradients(const CudaExec& exec, const DeviceRows<In, Out>& r) {
  if (r.rows == 0) return;
  with_row_variant(r, [&]<int W, bool kGeneral> {
    if constexpr (!kGeneral && sizeof(In) == sizeof(Out))
      launch_held<W>(exec, r);
    else
      row_losses_and_gradients<W, kGeneral>
          <<<row_grid(r.rows), gradient_threads<kGeneral>(row_bytes(r)), 0, exec.stream>>>(r);
  });
  cuda::check_launch("row losses and gradients");
}

}  // namespace xce::loss

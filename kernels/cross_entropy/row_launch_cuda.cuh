// The kernels of rows of logits, one block to a row, and their launches: statistics, losses from them, gradients, and
// all of a row at once.
#pragma once

#include "kernels/base/cuda_check.h"
#include "kernels/cross_entropy/row_gradient_cuda.cuh"
#include "kernels/cross_entropy/row_statistics_cuda.cuh"

namespace xce::loss {

// The loss of a row from its statistics to everything that asks for it, by one thread; a null `row`: an ignored one.
template <class In, class Out>
__device__ inline void store_loss(const DeviceRows<In, Out>& r, int64_t i, const RowTarget& target,
                                  const RowLoss* row) {
  store_row<Accum<Out>>(r.options, r.out, r.first_row + i, target, row);
  if (r.row_loss) r.row_loss[i] = row ? row->loss : 0, r.row_z_loss[i] = row ? row->z_loss : 0;
  if (row && r.out.n_correct && row->argmax == target.label)
    atomicAdd(reinterpret_cast<unsigned long long*>(&r.totals->n_correct), 1ull);
}
template <bool kGeneral, class In, class Out>
__device__ inline RowLoss loss_of(const DeviceRows<In, Out>& r, const RowTarget& target, const RowStatistics& s) {
  using A = Accum<Out>;
  Mass mass{};
  if constexpr (kGeneral)
    mass = mass_of<A>(r.options, *r.totals, target.label, r.vocab_global);
  else
    mass.at_label = mass.total = class_weight<A>(r.options, target.label);
  return row_loss(s, mass, target.token_weight, r.options.z_loss);
}
// z_y where these columns hold the label, else 0.
template <class In, class Out>
__device__ inline double target_logit(const DeviceRows<In, Out>& r, int64_t i, const RowTarget& target) {
  const int64_t y = target.label - r.first_col;
  if (target.label == kNoLabel || y < 0 || y >= r.cols) return 0;
  return static_cast<double>(z_at(r, LogitMap<Accum<Out>>(r.options), r.logits + i * r.ld, static_cast<int>(y)).z);
}

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
  if (d == 0 || !target.valid) return zero_gradient<W>(r, i);
  const double lse = static_cast<double>(r.offset[i]) + static_cast<double>(r.logsum[i]);
  const double total = total_mass<kGeneral>(r, target, i);
  const RowGradient<Out, kGeneral> gradient(r, target, factor_of(r, target, d, i), lse, total);
  GradientWriter<W, kGeneral, In, Out>(r, gradient, i).write();
}

// All of a whole row: statistics, loss, gradient.
template <int W, bool kGeneral, class In, class Out>
__global__ void __launch_bounds__(kRowThreads<kGeneral>, 1) row_losses_and_gradients(DeviceRows<In, Out> r) {
  const int64_t i = blockIdx.x;
  const RowTarget target = r.target(i);
  const double d = denominator(r.options, *r.totals);
  if (d == 0) zero_input(r, i);
  if (!target.valid) {
    if (threadIdx.x == 0) store_loss(r, i, target, nullptr);
    return zero_gradient<W>(r, i);
  }
  __shared__ double lse;
  double logit = 0;
  if (threadIdx.x == 0) logit = target_logit(r, i, target);
  Raw<In, W> raw[kStatisticsBatch<kGeneral, In, W>];
  RowStatistics s = block_statistics<kGeneral>(r, i, raw);
  if (threadIdx.x == 0) {
    s.target = logit;
    const RowLoss row = loss_of<kGeneral>(r, target, s);
    lse = row.offset + row.logsum;
    store_loss(r, i, target, &row);
  }
  if (d == 0) return zero_gradient<W>(r, i);
  __syncthreads();
  const RowGradient<Out, kGeneral> gradient(r, target, factor_of(r, target, d, i), lse,
                                            kGeneral ? s.mass : total_mass<false>(r, target, i));
  GradientWriter<W, kGeneral, In, Out> writer(r, gradient, i);
  if constexpr (sizeof(Out) < sizeof(In))
    writer.write();
  else
    writer.write(raw);
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
// Some vectors for each thread, so that short rows do not spend their time in reductions.
template <bool kGeneral, class In, class Out>
unsigned row_threads(const DeviceRows<In, Out>& r) {
  const int64_t bytes = r.cols * static_cast<int64_t>(sizeof(In));
  return bytes >= 96 * 1024 ? 512 : bytes >= 16 * 1024 ? 256 : 128;
}

template <class In, class Out>
void launch_statistics(const CudaExec& exec, const DeviceRows<In, Out>& r, const StatisticsView& set, Statistics what) {
  if (r.rows == 0) return;
  with_row_variant(r, [&]<int W, bool kGeneral> {
    row_statistics<W, kGeneral><<<row_grid(r.rows), row_threads<kGeneral>(r), 0, exec.stream>>>(r, set, what);
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
    row_gradients<W, kGeneral><<<row_grid(r.rows), row_threads<kGeneral>(r), 0, exec.stream>>>(r);
  });
  cuda::check_launch("row gradients");
}
template <class In, class Out>
void launch_losses_and_gradients(const CudaExec& exec, const DeviceRows<In, Out>& r) {
  if (r.rows == 0) return;
  with_row_variant(r, [&]<int W, bool kGeneral> {
    row_losses_and_gradients<W, kGeneral><<<row_grid(r.rows), row_threads<kGeneral>(r), 0, exec.stream>>>(r);
  });
  cuda::check_launch("row losses and gradients");
}

}  // namespace xce::loss

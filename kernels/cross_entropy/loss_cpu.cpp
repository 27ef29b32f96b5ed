// Counting targets, merging shards' row statistics, and the loss from merged ones: O(rows) work on the calling thread.
#include "kernels/cross_entropy/loss.h"

#include "kernels/cross_entropy/loss_rows.h"

namespace xce {
namespace {

template <class A>
void merge(const LossMergeStatistics& args) {
  const A* sets = static_cast<const A*>(args.sets);
  A* merged = static_cast<A*>(args.merged);
  for (int64_t i = 0; i < args.rows; ++i) {
    loss::MaxSum all;
    double target = 0;
    for (int64_t k = 0; k < args.count; ++k) {
      const A* set = sets + 3 * args.rows * k;
      all.merge(set[i], set[args.rows + i]);
      target += set[2 * args.rows + i];
    }
    merged[i] = static_cast<A>(all.max);
    merged[args.rows + i] = static_cast<A>(all.sum);
    merged[2 * args.rows + i] = static_cast<A>(target);
  }
}

template <class A>
void finalize(const LossFromStatistics& args) {
  const A* set = static_cast<const A*>(args.statistics);
  loss::Totals totals = loss::count_rows(args.targets, args.rows, args.vocab_global);
  for (int64_t i = 0; i < args.rows; ++i) {
    if (!loss::is_valid(args.targets, loss::label_of(args.targets, i), args.vocab_global)) {
      loss::store_row<A>(args.out, i, nullptr);
      continue;
    }
    loss::RowLoss row = loss::row_loss(set[i], set[args.rows + i], set[2 * args.rows + i], args.options.z_loss);
    totals.loss += row.loss;
    totals.z_loss += row.z_loss;
    loss::store_row<A>(args.out, i, &row);
  }
  loss::store_totals<A>(args.out, args.options, totals);
}

// The type of statistics and residuals of this dtype.
template <class F>
void visit_accum(DType dtype, F&& f) {
  visit_dtype(dtype, [&]<class T>(std::type_identity<T>) { f(std::type_identity<Accum<T>>{}); });
}

}  // namespace

void launch(const CpuExec&, const LossCount& args) {
  loss::Totals totals = loss::count_rows(args.targets, args.rows, args.vocab_global);
  auto put = [&](auto* to, int64_t value) {
    using V = std::remove_pointer_t<decltype(to)>;
    if (to) *to = (args.accumulate ? *to : V(0)) + static_cast<V>(value);
  };
  put(args.n_valid, totals.n_valid);
  put(args.weight_sum, totals.n_valid);
  put(args.out_of_range, totals.out_of_range);
}

void launch(const CpuExec&, const LossMergeStatistics& args) {
  XCE_CHECK(args.count >= 1, "LossMergeStatistics.count >= 1", args.count);
  visit_accum(args.dtype, [&]<class A>(std::type_identity<A>) { merge<A>(args); });
}

void launch(const CpuExec&, const LossFromStatistics& args) {
  loss::check(args.options);
  visit_accum(args.dtype, [&]<class A>(std::type_identity<A>) { finalize<A>(args); });
}

}  // namespace xce

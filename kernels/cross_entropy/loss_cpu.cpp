// Counting targets, merging shards' row statistics, and the loss from merged ones: O(rows) work on the calling thread.
#include "kernels/cross_entropy/loss.h"

#include "kernels/cross_entropy/loss_rows.h"

namespace xce {
namespace {

template <class A>
void finalize(const LossFromStatistics& args) {
  loss::Totals totals = loss::count_rows<A>(args.targets, args.options, args.rows, args.vocab_global);
  for (int64_t i = 0; i < args.rows; ++i) {
    const loss::RowTarget target = loss::row_target<A>(args.targets, args.options, args.vocab_global, i);
    if (!target.valid) {
      loss::store_row<A>(args.options, args.out, i, target, nullptr);
      continue;
    }
    const loss::Mass mass = loss::mass_of<A>(args.options, totals, target.label, args.vocab_global);
    const loss::RowLoss row = loss::row_loss(loss::RowStatistics::load(args.statistics, args.rows, i), mass,
                                             target.token_weight, args.options.z_loss);
    loss::add_loss(totals, row, target);
    loss::store_row<A>(args.options, args.out, i, target, &row);
  }
  loss::store_totals<A>(args.out, args.options, totals);
}

// The type of weights, residuals and results of this dtype.
template <class F>
decltype(auto) visit_accum(DType dtype, F&& f) {
  return visit_loss_dtype(dtype, [&]<class T>(std::type_identity<T>) { return f(std::type_identity<Accum<T>>{}); });
}

}  // namespace

void launch(const CpuExec&, const LossCount& args) {
  const LossOptions options{.class_weights = args.class_weights, .token_weights = args.token_weights};
  loss::check(args.targets, options, {}, args.rows, 0);
  const loss::Totals totals = visit_accum(args.dtype, [&]<class A>(std::type_identity<A>) {
    return loss::count_rows<A>(args.targets, options, args.rows, args.vocab_global);
  });
  auto put = [&](auto* to, auto value) {
    if (to) *to = (args.accumulate ? *to : 0) + value;
  };
  put(args.n_valid, totals.n_valid);
  put(args.weight_sum, totals.weight_sum);
  put(args.out_of_range, totals.out_of_range);
  int64_t* first = args.first_out_of_range;
  if (first && !(args.accumulate && *first >= 0)) *first = totals.first_out_of_range;
}

void launch(const CpuExec&, const LossMergeStatistics& args) {
  XCE_CHECK(args.count >= 1, "LossMergeStatistics.count >= 1", args.count);
  for (int64_t i = 0; i < args.rows; ++i) {
    loss::RowStatistics all;
    for (int64_t k = 0; k < args.count; ++k)
      all.merge(loss::RowStatistics::load(args.sets + kLossStatistics * args.rows * k, args.rows, i));
    all.store(args.merged, args.rows, i);
  }
}

void launch(const CpuExec&, const LossFromStatistics& args) {
  loss::check(args.targets, args.options, args.out, args.rows, 0);
  visit_accum(args.dtype, [&]<class A>(std::type_identity<A>) { finalize<A>(args); });
}

}  // namespace xce

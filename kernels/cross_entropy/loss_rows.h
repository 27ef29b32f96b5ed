// One row's arithmetic, shared by both losses and devices: which labels count, the loss from a row's statistics, the
// reduced results.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#include "kernels/base/check.h"
#include "kernels/base/host_device.h"
#include "kernels/cross_entropy/loss.h"

namespace xce::loss {

inline int64_t label_of(const LossTargets& targets, int64_t row) {
  return visit_index(targets.type, [&]<class I>(std::type_identity<I>) {
    return static_cast<int64_t>(static_cast<const I*>(targets.index)[row * targets.stride]);
  });
}
XCE_HOST_DEVICE inline bool in_vocab(int64_t label, int64_t vocab_global) {
  return label >= 0 && label < vocab_global;
}
XCE_HOST_DEVICE inline bool is_valid(const LossTargets& targets, int64_t label, int64_t vocab_global) {
  return label != targets.ignore_index && in_vocab(label, vocab_global);
}

// Running results of a call; sums in fp64 and in row order, so that they depend on neither chunks nor threads.
struct Totals {
  int64_t n_valid = 0, out_of_range = 0;
  double loss = 0, z_loss = 0;
};

inline Totals count_rows(const LossTargets& targets, int64_t rows, int64_t vocab_global) {
  Totals totals;
  for (int64_t i = 0; i < rows; ++i) {
    int64_t label = label_of(targets, i);
    if (label == targets.ignore_index) continue;
    ++(in_vocab(label, vocab_global) ? totals.n_valid : totals.out_of_range);
  }
  return totals;
}

inline void check(const LossOptions& options) {
  XCE_CHECK(options.denominator == nullptr || options.reduction == Reduction::kMean,
            "a denominator only with reduction mean", static_cast<int>(options.reduction));
}

XCE_HOST_DEVICE inline double denominator(const LossOptions& options, int64_t n_valid) {
  if (options.reduction != Reduction::kMean) return 1;
  return options.denominator ? *options.denominator : static_cast<double>(n_valid);
}

// One row's loss: logsum - (target - max) never forms lse - target, which cancels at large offsets.
struct RowLoss {
  double offset, logsum, loss, z_loss;
};
XCE_HOST_DEVICE inline RowLoss row_loss(double max, double sum, double target, double z_loss) {
  double logsum = std::log(sum), lse = max + logsum;
  double z = z_loss != 0 ? z_loss * lse * lse : 0;
  return {max, logsum, logsum - (target - max) + z, z};
}

inline bool any(const LossOutputs& out) {
  return out.loss || out.loss_total || out.row_loss || out.offset || out.logsum || out.z_loss || out.n_valid ||
         out.out_of_range;
}

// Row i's results; of a null `row`: those of an ignored one.
template <class A>
XCE_HOST_DEVICE void store_row(const LossOutputs& out, int64_t i, const RowLoss* row) {
  if (out.row_loss) static_cast<A*>(out.row_loss)[i] = row ? static_cast<A>(row->loss) : A(0);
  if (out.offset) static_cast<A*>(out.offset)[i] = row ? static_cast<A>(row->offset) : A(0);
  if (out.logsum) static_cast<A*>(out.logsum)[i] = row ? static_cast<A>(row->logsum) : A(0);
}

template <class A>
XCE_HOST_DEVICE void store_totals(const LossOutputs& out, const LossOptions& options, const Totals& totals) {
  double d = denominator(options, totals.n_valid);
  double loss = d == 0 ? 0 : totals.loss / d;
  if (out.loss) *static_cast<A*>(out.loss) = static_cast<A>(loss);
  if (out.loss_total) *out.loss_total += loss;
  if (out.z_loss) *static_cast<A*>(out.z_loss) = static_cast<A>(d == 0 ? 0 : totals.z_loss / d);
  if (out.n_valid) *out.n_valid = totals.n_valid;
  if (out.out_of_range) *out.out_of_range = totals.out_of_range;
}

// Row i's factor of the gradient, upstream_i / D; D is not 0.
template <class A>
XCE_HOST_DEVICE double row_upstream(const LossUpstream& upstream, Reduction reduction, double d, int64_t i) {
  if (!upstream.gradient) return 1 / d;
  int64_t at = reduction == Reduction::kNone ? i * upstream.stride : 0;
  return static_cast<double>(static_cast<const A*>(upstream.gradient)[at]) / d;
}

// Rows' statistics, see LossMergeStatistics. Joins (max, sum) of another part; an empty part changes nothing, and a
// part that held only NaN keeps them in its sum.
struct MaxSum {
  double max = -std::numeric_limits<double>::infinity();
  double sum = 0;
  void merge(double other_max, double other_sum) {
    double top = other_max > max ? other_max : max;
    sum = scaled(max, sum, top) + scaled(other_max, other_sum, top);
    max = top;
  }
  static double scaled(double part_max, double part_sum, double top) {
    return part_max == top || part_max == -std::numeric_limits<double>::infinity()
               ? part_sum
               : part_sum * std::exp(part_max - top);
  }
};

}  // namespace xce::loss

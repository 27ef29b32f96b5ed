// One row's arithmetic, shared by both losses and devices: which rows count, a target's mass, the loss from a row's
// statistics, its gradient's coefficients, the reduced results.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#include "kernels/base/check.h"
#include "kernels/base/host_device.h"
#include "kernels/cross_entropy/loss.h"

namespace xce::loss {

// Device code may use them, not the functions that give them.
inline constexpr double kInfinity = std::numeric_limits<double>::infinity();
inline constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

XCE_HOST_DEVICE inline int64_t label_of(const LossTargets& targets, int64_t row) {
  const int64_t at = row * targets.stride;
  return targets.type == IndexType::kI32 ? static_cast<const int32_t*>(targets.index)[at]
                                         : static_cast<const int64_t*>(targets.index)[at];
}
template <class A>
XCE_HOST_DEVICE double class_weight(const LossOptions& options, int64_t label) {
  return options.class_weights ? static_cast<double>(static_cast<const A*>(options.class_weights)[label]) : 1;
}

struct RowTarget {
  int64_t label;  // global; kNoLabel with probabilities
  bool valid, out_of_range;
  double token_weight;
};
inline constexpr int64_t kNoLabel = -1;

// Row i of the call.
template <class A>
XCE_HOST_DEVICE RowTarget row_target(const LossTargets& targets, const LossOptions& options, int64_t vocab_global,
                                     int64_t i) {
  RowTarget row{kNoLabel, true, false, 1};
  if (!targets.probabilities) {
    row.label = label_of(targets, i);
    const bool wanted = row.label != targets.ignore_index, inside = row.label >= 0 && row.label < vocab_global;
    row.valid = wanted && inside;
    row.out_of_range = wanted && !inside;
  }
  if (options.token_weights) {
    row.token_weight = static_cast<double>(static_cast<const A*>(options.token_weights)[i]);
    row.valid = row.valid && row.token_weight != 0;
  }
  return row;
}

// Running results of a call; sums in fp64 and in a fixed order.
struct Totals {
  int64_t n_valid = 0, out_of_range = 0, first_out_of_range = -1, n_correct = 0;
  double weight_sum = 0;
  double class_weights = 0;  // sum of w_v over vocab_global, where smoothing asks for it
  double loss = 0, z_loss = 0;
};

// What row i adds to the counts.
template <class A>
XCE_HOST_DEVICE void count_row(Totals& totals, const LossOptions& options, const RowTarget& row, int64_t i) {
  if (row.out_of_range) {
    if (totals.out_of_range++ == 0) totals.first_out_of_range = i;
  } else if (row.valid) {
    ++totals.n_valid;
    totals.weight_sum += row.token_weight * (row.label == kNoLabel ? 1 : class_weight<A>(options, row.label));
  }
}

// What all rows of a call add, and the sum of its class weights; on the host.
template <class A>
Totals count_rows(const LossTargets& targets, const LossOptions& options, int64_t rows, int64_t vocab_global) {
  Totals totals;
  for (int64_t i = 0; i < rows; ++i) count_row<A>(totals, options, row_target<A>(targets, options, vocab_global, i), i);
  if (options.label_smoothing == 0) return totals;
  totals.class_weights = static_cast<double>(vocab_global);
  if (const A* weights = static_cast<const A*>(options.class_weights)) {
    totals.class_weights = 0;
    for (int64_t v = 0; v < vocab_global; ++v) totals.class_weights += static_cast<double>(weights[v]);
  }
  return totals;
}

// On the host; pointers into a device's memory are not read.
inline void check(const LossTargets& targets, const LossOptions& options, const LossOutputs& out, int64_t rows,
                  int64_t vocab) {
  XCE_CHECK(rows == 0 || targets.index || targets.probabilities, "labels or probabilities", "neither");
  XCE_CHECK(!targets.index || !targets.probabilities, "labels or probabilities", "both");
  XCE_CHECK(!targets.probabilities || targets.ignore_index == LossTargets{}.ignore_index,
            "ignore_index only with labels (token weights of 0 ignore rows of probabilities)", targets.ignore_index);
  XCE_CHECK(targets.ld_probabilities == 0 || targets.ld_probabilities >= vocab, "ld_probabilities 0 or >= vocab",
            targets.ld_probabilities);
  XCE_CHECK(!targets.probabilities || !out.n_correct, "n_correct only with labels", "probabilities");
  XCE_CHECK(options.denominator == nullptr || options.reduction == Reduction::kMean,
            "a denominator only with reduction mean", static_cast<int>(options.reduction));
  XCE_CHECK(std::isfinite(options.z_loss), "a finite z_loss", options.z_loss);
  XCE_CHECK(options.label_smoothing >= 0 && options.label_smoothing <= 1, "label_smoothing in [0, 1]",
            options.label_smoothing);
  // Both meet fp32 logits.
  XCE_CHECK(options.softcap == 0 || (options.softcap > 0 && std::isnormal(static_cast<float>(options.softcap))),
            "softcap 0 or positive, within fp32's range", options.softcap);
  XCE_CHECK(std::isfinite(static_cast<float>(options.logit_scale)), "a finite logit_scale, within fp32's range",
            options.logit_scale);
}

// A backward from a residual; the sums of a shard's own probabilities would be wrong in silence.
inline void check_backward(const LossTargets& targets, bool whole_vocab, const void* offset, const void* logsum,
                           int64_t rows) {
  XCE_CHECK(rows == 0 || (offset && logsum), "the forward's residual", "null");
  XCE_CHECK(rows == 0 || !targets.probabilities || whole_vocab || targets.probability_mass,
            "probability_mass with a shard's probabilities", "null");
}

// What only some calls ask of a row's statistics: mass at all of its logits, its entropy, the label of its maximum.
struct Extras {
  bool mass, entropy, argmax;
  bool any() const { return mass || entropy || argmax; }
};
inline Extras extras_of(const LossTargets& targets, const LossOptions& options, const LossOutputs& out) {
  return {targets.probabilities || options.label_smoothing != 0, out.row_entropy != nullptr,
          out.argmax || out.n_correct};
}

XCE_HOST_DEVICE inline double denominator(const LossOptions& options, const Totals& totals) {
  if (options.reduction != Reduction::kMean) return 1;
  return options.denominator ? *options.denominator : totals.weight_sum;
}

// What a label gives: a_v = each w_v, and at_label more where v is the label. Of probabilities: a_v = w_v (keep t_v +
// each), at_label 0, and S is the row's own, in its statistics.
struct Mass {
  double at_label, keep, each;
  double total;  // S, unless by_row
  bool by_row = false;
};
template <class A>
XCE_HOST_DEVICE Mass mass_of(const LossOptions& options, const Totals& totals, int64_t label, int64_t vocab_global) {
  const double keep = 1 - options.label_smoothing, each = options.label_smoothing / static_cast<double>(vocab_global);
  if (label == kNoLabel) return {0, keep, each, 0, true};
  const double at_label = class_weight<A>(options, label) * keep;
  return {at_label, 0, each, at_label + (each != 0 ? each * totals.class_weights : 0)};
}

// A row's statistics over (a part of) its columns; see LossMergeStatistics. Empty: of no column.
struct RowStatistics {
  double max = -kInfinity;
  double sum = 0, target = 0, mass_logits = 0, mass = 0, entropy = 0, argmax = -1;

  // Joins another part's; of equal maxima the lower label stays. A part that held only NaN keeps them in its sum.
  XCE_HOST_DEVICE void merge(const RowStatistics& other) {
    const double top = other.max > max ? other.max : max;
    const RowStatistics a = rebased(top), b = other.rebased(top);
    const bool other_wins =
        other.argmax >= 0 && (argmax < 0 || other.max > max || (other.max == max && other.argmax < argmax));
    argmax = other_wins ? other.argmax : argmax;
    max = top;
    sum = a.sum + b.sum;
    target += other.target;
    mass_logits = a.mass_logits + b.mass_logits;
    mass += other.mass;
    entropy = a.entropy + b.entropy;
  }
  // The same relative to `top`, which is not below max.
  XCE_HOST_DEVICE RowStatistics rebased(double top) const {
    RowStatistics r = *this;
    if (max == top || max == -kInfinity) return r;
    const double shift = max - top, factor = exp(shift);
    r.sum = sum * factor;
    r.entropy = (entropy + sum * shift) * factor;
    if (mass != 0) r.mass_logits = mass_logits + mass * shift;
    return r;
  }
  XCE_HOST_DEVICE static RowStatistics load(const double* set, int64_t rows, int64_t i) {
    return {set[i],           set[rows + i], set[2 * rows + i], set[3 * rows + i], set[4 * rows + i], set[5 * rows + i],
            set[6 * rows + i]};
  }
  XCE_HOST_DEVICE void store(double* set, int64_t rows, int64_t i) const {
    set[i] = max, set[rows + i] = sum, set[2 * rows + i] = target, set[3 * rows + i] = mass_logits;
    set[4 * rows + i] = mass, set[5 * rows + i] = entropy, set[6 * rows + i] = argmax;
  }
};

// Statistics of a chunk's rows in a block of sets of `rows` rows: row i of the chunk is row first + i there.
struct StatisticsView {
  double* data;
  int64_t rows, first;
  XCE_HOST_DEVICE RowStatistics load(int64_t i) const { return RowStatistics::load(data, rows, first + i); }
  XCE_HOST_DEVICE void store(int64_t i, const RowStatistics& s) const { s.store(data, rows, first + i); }
};

// One row's loss: logsum - (target - max) never forms lse - target, which cancels at large offsets.
struct RowLoss {
  double offset, logsum, loss, z_loss, entropy;
  int64_t argmax;
};
XCE_HOST_DEVICE inline RowLoss row_loss(const RowStatistics& s, const Mass& mass, double token_weight, double z_loss) {
  const double logsum = log(s.sum), lse = s.max + logsum;
  const double total = mass.by_row ? s.mass : mass.total;
  double loss = total != 0 ? total * logsum - s.mass_logits : -s.mass_logits;
  if (mass.at_label != 0) loss -= mass.at_label * (s.target - s.max);
  const double z = z_loss != 0 ? z_loss * lse * lse : 0;
  return {s.max,
          logsum,
          token_weight * (loss + z),
          token_weight * z,
          s.entropy != 0 ? logsum - s.entropy / s.sum : logsum,
          s.argmax >= 0 && s.argmax < 0x1p63 ? static_cast<int64_t>(s.argmax) : -1};  // a caller's set may be spoilt
}

// What a valid row's loss adds to the results.
XCE_HOST_DEVICE inline void add_loss(Totals& totals, const RowLoss& row, const RowTarget& target) {
  totals.loss += row.loss;
  totals.z_loss += row.z_loss;
  totals.n_correct += target.label != kNoLabel && row.argmax == target.label ? 1 : 0;
}

inline bool any(const LossOutputs& out) {
  return out.loss || out.loss_total || out.row_loss || out.offset || out.logsum || out.z_loss || out.row_max ||
         out.row_entropy || out.argmax || out.n_correct || out.n_valid || out.weight_sum || out.out_of_range ||
         out.first_out_of_range;
}

// Row i's results; of a null `row`: those of an ignored one.
template <class A>
XCE_HOST_DEVICE void store_row(const LossOptions& options, const LossOutputs& out, int64_t i, const RowTarget& target,
                               const RowLoss* row) {
  const bool poisoned = target.out_of_range && options.out_of_range_is_nan;
  auto put = [&](void* to, double value, double ignored) {
    if (to) static_cast<A*>(to)[i] = static_cast<A>(row ? value : ignored);
  };
  put(out.row_loss, row ? row->loss : 0, poisoned ? kNan : 0);
  put(out.offset, row ? row->offset : 0, 0);
  put(out.logsum, row ? row->logsum : 0, 0);
  put(out.row_max, row ? row->offset : 0, 0);
  put(out.row_entropy, row ? row->entropy : 0, 0);
  if (out.argmax) out.argmax[i] = row ? row->argmax : -1;
}

template <class A>
XCE_HOST_DEVICE void store_totals(const LossOutputs& out, const LossOptions& options, const Totals& totals) {
  const double d = denominator(options, totals);
  double loss = d == 0 ? (options.empty_is_nan ? kNan : 0) : totals.loss / d;
  if (options.out_of_range_is_nan && totals.out_of_range > 0) loss = kNan;
  if (out.loss) *static_cast<A*>(out.loss) = static_cast<A>(loss);
  if (out.loss_total) *out.loss_total += loss;
  if (out.z_loss) *static_cast<A*>(out.z_loss) = static_cast<A>(d == 0 ? 0 : totals.z_loss / d);
  if (out.n_correct) *out.n_correct = totals.n_correct;
  if (out.n_valid) *out.n_valid = totals.n_valid;
  if (out.weight_sum) *out.weight_sum = totals.weight_sum;
  if (out.out_of_range) *out.out_of_range = totals.out_of_range;
  if (out.first_out_of_range) *out.first_out_of_range = totals.first_out_of_range;
}

// Row i's factor of the gradient by y, s upstream_i u_i / D; D is not 0.
template <class A>
XCE_HOST_DEVICE double row_factor(const LossUpstream& upstream, const LossOptions& options, double token_weight,
                                  double d, int64_t i) {
  const double own = options.logit_scale * token_weight / d;
  if (!upstream.gradient) return own;
  const int64_t at = options.reduction == Reduction::kNone ? i * upstream.stride : 0;
  return own * static_cast<double>(static_cast<const A*>(upstream.gradient)[at]);
}

}  // namespace xce::loss

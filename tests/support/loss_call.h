// What both losses' runs share: a LossCase in a device's arrays, the call's targets, options and upstream gradient, and
// every output, poisoned. All arrays are guarded, and inputs keep a copy to be compared with.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <random>
#include <utility>
#include <vector>

#include "kernels/cross_entropy/loss.h"
#include "tests/support/array.h"
#include "tests/support/compare.h"
#include "tests/support/loss_reference.h"

namespace xce::test {

struct LossSetup {
  DType dtype = DType::kF32;
  IndexType index = IndexType::kI64;
  int64_t index_stride = 1;  // may be negative, as the next
  Reduction reduction = Reduction::kMean;
  int64_t upstream_stride = 1;
  size_t budget_bytes = size_t{128} << 20;
  int64_t pad_x = 0, pad_weight = 0;  // extra elements between rows; of plain cross-entropy's logits: pad_x
  bool with_dx = true, with_dweight = true, with_dbias = true;
  bool accumulate = false;  // into dx, dweight and dbias that hold 0.5
  bool by_pointer = false;  // the mean's denominator is LossCase::divisor
  bool dx_in_accum_dtype = false, dweight_in_dtype = false;
  int64_t pad_dx = 0, pad_dweight = 0, pad_probabilities = 0;  // as pad_x; of plain cross-entropy's dlogits: pad_dx
  DType probability_type = DType::kF32;                        // of LossCase::probabilities, which are rounded to it
  bool empty_is_nan = false, out_of_range_is_nan = false;
  bool in_place = false;     // plain cross-entropy's gradient overwrites the logits
  double budget_factor = 0;  // not 0: the budget is this times the least
  int64_t skip = 0;          // arrays start this many elements late
  uint32_t omit = 0;         // outputs that are not asked for, by their bits of LossCall::Output
  // Sums that cancel are judged by their terms: see LossAnswer::dx_terms.
  bool by_terms = false;
};

class LossCall {
 public:
  enum Output : uint32_t {
    kLoss = 1,
    kLossTotal = 2,
    kRowLoss = 4,
    kZLoss = 8,
    kRowMax = 16,
    kRowEntropy = 32,
    kArgmax = 64,
    kNCorrect = 128,
    kNValid = 256,
    kWeightSum = 512,
    kOutOfRange = 1024,
    kFirstOutOfRange = 2048,
    kResidual = 4096  // never left out before a backward
  };

  LossCall(const LossCase& c, const LossSetup& s)
      : c_(c),
        s_(s),
        accum_(accum_dtype(s.dtype)),
        upstream_(accum_, spread(std::ssize(c.upstream), s.upstream_stride), s.skip),
        class_weights_(array_of(accum_, c.class_weights, s.skip)),
        token_weights_(array_of(accum_, c.token_weights, s.skip)),
        probabilities_(rows_of(s.probability_type, c.probabilities, c.vocab, s.pad_probabilities, s.skip)),
        divisor_(c.divisor),
        labels_(spread(std::ssize(c.labels), s.index_stride) + 2, kLabelGuard),
        labels32_(labels_.size(), static_cast<int32_t>(kLabelGuard)),
        argmax_(c.rows + 2, kLabelGuard),
        loss(accum_, 1, s.skip),
        z_loss(accum_, 1, s.skip),
        row_loss(accum_, c.rows, s.skip),
        offset(accum_, c.rows, s.skip),
        logsum(accum_, c.rows, s.skip),
        row_max(accum_, c.rows, s.skip),
        row_entropy(accum_, c.rows, s.skip) {
    replace_values(c);
  }
  // Labels, upstream gradient, weights and denominator of a case of the same sizes, where those of the first lie.
  void replace_values(const LossCase& c) {
    for (int64_t i = 0; i < std::ssize(c.upstream); ++i)
      upstream_.set(place(i, std::ssize(c.upstream), s_.upstream_stride), c.upstream[i]);
    for (int64_t i = 0; i < std::ssize(c.labels); ++i) {
      const int64_t at = 1 + place(i, std::ssize(c.labels), s_.index_stride);
      labels_[at] = c.labels[i];
      labels32_[at] = static_cast<int32_t>(c.labels[i]);
    }
    for (int64_t v = 0; v < std::ssize(c.class_weights); ++v) class_weights_.set(v, c.class_weights[v]);
    for (int64_t i = 0; i < std::ssize(c.token_weights); ++i) token_weights_.set(i, c.token_weights[i]);
    divisor_.set(c.divisor);
  }

  LossTargets targets() const {
    if (!has_labels())
      return {.probabilities = probabilities_.data(),
              .probability_type = s_.probability_type,
              .ld_probabilities = s_.pad_probabilities ? c_.vocab + s_.pad_probabilities : 0};
    const int64_t first = 1 + (c_.rows > 0 ? place(0, c_.rows, s_.index_stride) : 0);
    return {.index = s_.index == IndexType::kI32 ? static_cast<const void*>(&labels32_[first])
                                                 : static_cast<const void*>(&labels_[first]),
            .type = s_.index,
            .stride = s_.index_stride,
            .ignore_index = c_.ignore_index};
  }
  LossOptions options() const {
    return {.reduction = s_.reduction,
            .z_loss = c_.z_loss,
            .label_smoothing = c_.label_smoothing,
            .softcap = c_.softcap,
            .logit_scale = c_.logit_scale,
            .class_weights = c_.class_weights.empty() ? nullptr : class_weights_.data(),
            .token_weights = c_.token_weights.empty() ? nullptr : token_weights_.data(),
            .denominator = s_.by_pointer ? divisor_.data() : nullptr,
            .empty_is_nan = s_.empty_is_nan,
            .out_of_range_is_nan = s_.out_of_range_is_nan};
  }
  LossUpstream upstream() const {
    if (c_.upstream.empty()) return {};
    const int64_t n = std::ssize(c_.upstream);
    const char* first = static_cast<const char*>(upstream_.data()) + place(0, n, s_.upstream_stride) * size_of(accum_);
    return {.gradient = first, .stride = n == 1 ? 0 : s_.upstream_stride};
  }
  LossOutputs outputs() {
    auto asked = [this](Output output, auto* data) { return wants(output) ? data : nullptr; };
    return {.loss = asked(kLoss, loss.data()),
            .loss_total = asked(kLossTotal, loss_total.data()),
            .row_loss = asked(kRowLoss, row_loss.data()),
            .offset = asked(kResidual, offset.data()),
            .logsum = asked(kResidual, logsum.data()),
            .z_loss = asked(kZLoss, z_loss.data()),
            .row_max = asked(kRowMax, row_max.data()),
            .row_entropy = asked(kRowEntropy, row_entropy.data()),
            .argmax = asked(kArgmax, &argmax_[1]),
            .n_correct = asked(kNCorrect, n_correct.data()),
            .n_valid = asked(kNValid, n_valid.data()),
            .weight_sum = asked(kWeightSum, weight_sum.data()),
            .out_of_range = asked(kOutOfRange, out_of_range.data()),
            .first_out_of_range = asked(kFirstOutOfRange, first_out_of_range.data())};
  }
  bool wants(Output output) const {
    const bool row_result = output == kRowEntropy || output == kArgmax || output == kNCorrect;
    return (s_.omit & output) == 0 && (with_row_results || !row_result) && (output != kNCorrect || has_labels());
  }

  int64_t argmax(int64_t i) const { return argmax_[1 + i]; }
  void set_argmax(int64_t i, int64_t label) { argmax_[1 + i] = label; }
  bool has_labels() const { return c_.probabilities.empty(); }
  bool is_label(int64_t i, int64_t v) const { return has_labels() && c_.labels[i] == v; }
  bool out_of_range_label(int64_t i) const { return c_.out_of_range(i); }
  int64_t rows() const { return c_.rows; }
  int64_t vocab() const { return c_.vocab; }
  int64_t hidden() const { return c_.hidden; }
  const LossSetup& setup() const { return s_; }

  // Nothing beside the outputs was written, what was not asked for neither.
  ::testing::AssertionResult outputs_guarded() const {
    for (const Array* a : {&loss, &z_loss, &row_loss, &offset, &logsum, &row_max, &row_entropy})
      if (!a->guards_intact()) return ::testing::AssertionFailure() << "beside an output array";
    for (const Scalar<int64_t>* a : {&n_valid, &out_of_range, &first_out_of_range, &n_correct})
      if (!a->guards_intact()) return ::testing::AssertionFailure() << "beside a count";
    if (!loss_total.guards_intact() || !weight_sum.guards_intact())
      return ::testing::AssertionFailure() << "beside an fp64 result";
    if (argmax_.front() != kLabelGuard || argmax_.back() != kLabelGuard)
      return ::testing::AssertionFailure() << "beside argmax";
    for (auto [output, a] : {std::pair{kLoss, &loss},
                             {kRowLoss, &row_loss},
                             {kResidual, &offset},
                             {kResidual, &logsum},
                             {kZLoss, &z_loss},
                             {kRowMax, &row_max},
                             {kRowEntropy, &row_entropy}})
      for (int64_t i = 0; i < a->size(); ++i)
        if (!wants(output) && !std::isnan((*a)[i])) return ::testing::AssertionFailure() << "output " << output;
    return ::testing::AssertionSuccess();
  }
  // The inputs' bits, guards included, are those of a call that never ran.
  ::testing::AssertionResult inputs_equal(const LossCall& fresh) const {
    for (auto [name, mine, other] : {std::tuple{"upstream", &upstream_, &fresh.upstream_},
                                     {"class weights", &class_weights_, &fresh.class_weights_},
                                     {"token weights", &token_weights_, &fresh.token_weights_},
                                     {"probabilities", &probabilities_, &fresh.probabilities_}})
      if (!mine->same_bits(*other)) return ::testing::AssertionFailure() << name << " were written";
    if (labels_ != fresh.labels_ || labels32_ != fresh.labels32_)
      return ::testing::AssertionFailure() << "labels were written";
    return ::testing::AssertionSuccess();
  }

 protected:
  static Array array_of(DType dtype, const std::vector<double>& values, int64_t skip) {
    return rows_of(dtype, values, std::max<int64_t>(1, std::ssize(values)), 0, skip);
  }
  // (n / cols) rows of cols values and `pad` elements of NaN.
  static Array rows_of(DType dtype, const std::vector<double>& values, int64_t cols, int64_t pad, int64_t skip) {
    const int64_t n = std::ssize(values);
    Array a(dtype, n / cols * (cols + pad), skip);
    for (int64_t i = 0; i < n; ++i) a.set(i / cols * (cols + pad) + i % cols, values[i]);
    return a;
  }

 private:
  // Beside and between labels: in range as int64 nowhere, as int32 0.
  static constexpr int64_t kLabelGuard = int64_t{1} << 40;
  static int64_t spread(int64_t n, int64_t stride) { return n == 0 ? 1 : (n - 1) * std::abs(stride) + 1; }
  static int64_t place(int64_t i, int64_t n, int64_t stride) { return (stride < 0 ? i - (n - 1) : i) * stride; }

 protected:
  const LossCase& c_;
  LossSetup s_;
  DType accum_;

 private:
  Array upstream_, class_weights_, token_weights_, probabilities_;
  Scalar<double> divisor_;
  Vector<int64_t> labels_;
  Vector<int32_t> labels32_;
  Vector<int64_t> argmax_;

 public:
  Array loss, z_loss, row_loss, offset, logsum, row_max, row_entropy;
  Scalar<double> loss_total{0}, weight_sum{-1};
  Scalar<int64_t> n_valid{-1}, out_of_range{-1}, first_out_of_range{-7}, n_correct{-7};
  bool with_row_results = true;  // entropy, argmax, n_correct: other kernels than without
  bool on_gpu = false;           // of the last call
};

// A case of normal values rounded to dtype, logits of about unit spread times `spread`, a tenth of the rows ignored.
inline LossCase random_case(DType dtype, int64_t rows, int64_t hidden, int64_t vocab, uint64_t seed, double spread = 1,
                            bool bias = true) {
  LossCase c;
  c.rows = rows, c.hidden = hidden, c.vocab = vocab;
  c.x = Array::normal(dtype, rows * hidden, seed).values();
  c.weight = Array::normal(dtype, vocab * hidden, seed + 1, spread / std::sqrt(static_cast<double>(hidden))).values();
  if (bias) c.bias = Array::normal(dtype, vocab, seed + 2, 0.5).values();
  std::mt19937_64 gen(seed + 3);
  for (int64_t i = 0; i < rows; ++i)
    c.labels.push_back(gen() % 10 == 0 ? c.ignore_index : static_cast<int64_t>(gen() % vocab));
  return c;
}

}  // namespace xce::test

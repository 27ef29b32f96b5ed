// Runs a LossCase through linear cross-entropy on any exec: outputs poisoned, workspace guarded, all error bars in one
// place.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "kernels/linear_cross_entropy/linear_cross_entropy.h"
#include "tests/support/array.h"
#include "tests/support/compare.h"
#include "tests/support/execs.h"
#include "tests/support/loss_reference.h"

namespace xce::test {

struct LossSetup {
  DType dtype = DType::kF32;
  IndexType index = IndexType::kI64;
  int64_t index_stride = 1;
  Reduction reduction = Reduction::kMean;
  int64_t upstream_stride = 1;
  size_t budget_bytes = size_t{128} << 20;
  int64_t pad_x = 0, pad_weight = 0;  // extra elements between rows
  bool with_dx = true, with_dweight = true, with_dbias = true;
  bool accumulate = false;  // into dx, dweight and dbias that hold 0.5
  bool by_pointer = false;  // the mean's denominator is LossCase::divisor
  bool dx_in_accum_dtype = false, dweight_in_dtype = false;
  int64_t pad_dx = 0, pad_dweight = 0, pad_probabilities = 0;  // extra elements between rows
  DType probability_type = DType::kF32;                        // of LossCase::probabilities, which are rounded to it
  bool empty_is_nan = false, out_of_range_is_nan = false;
};

// A case's device arrays and every output; `fill` poisons them anew.
class LossRun {
 public:
  LossRun(const LossCase& c, const LossSetup& s)
      : c_(c),
        s_(s),
        accum_(accum_dtype(s.dtype)),
        x_(padded(c.x, c.rows, c.hidden, s.pad_x)),
        weight_(padded(c.weight, c.vocab, c.hidden, s.pad_weight)),
        bias_(s.dtype, static_cast<int64_t>(c.bias.size())),
        upstream_(accum_, std::max<int64_t>(1, static_cast<int64_t>(c.upstream.size()) * s.upstream_stride)),
        class_weights_(accum_, std::ssize(c.class_weights)),
        token_weights_(accum_, std::ssize(c.token_weights)),
        probabilities_(s.probability_type, c.probabilities.empty() ? 0 : c.rows * (c.vocab + s.pad_probabilities)),
        divisor_(c.divisor),
        argmax_(c.rows, -7),
        dx(s.dx_in_accum_dtype ? accum_ : s.dtype, c.rows * (c.hidden + s.pad_dx)),
        dweight(s.dweight_in_dtype ? s.dtype : accum_, c.vocab * (c.hidden + s.pad_dweight)),
        dbias(dweight.dtype(), c.vocab),
        loss(accum_, 1),
        z_loss(accum_, 1),
        row_loss(accum_, c.rows),
        offset(accum_, c.rows),
        logsum(accum_, c.rows),
        row_max(accum_, c.rows),
        row_entropy(accum_, c.rows) {
    for (size_t v = 0; v < c.class_weights.size(); ++v) class_weights_.set(v, c.class_weights[v]);
    for (size_t i = 0; i < c.token_weights.size(); ++i) token_weights_.set(i, c.token_weights[i]);
    for (size_t i = 0; i < c.probabilities.size(); ++i)
      probabilities_.set(i / c.vocab * (c.vocab + s.pad_probabilities) + i % c.vocab, c.probabilities[i]);
    for (size_t v = 0; v < c.bias.size(); ++v) bias_.set(v, c.bias[v]);
    for (size_t i = 0; i < c.upstream.size(); ++i) upstream_.set(i * s.upstream_stride, c.upstream[i]);
    labels32_.assign(c.rows * s.index_stride, 1);
    labels64_.assign(c.rows * s.index_stride, 1);
    for (size_t i = 0; i < c.labels.size(); ++i) {
      labels32_[i * s.index_stride] = static_cast<int32_t>(c.labels[i]);
      labels64_[i * s.index_stride] = c.labels[i];
    }
    if (s.accumulate) {
      for (auto [a, pad] : {std::pair{&dx, s.pad_dx}, {&dweight, s.pad_dweight}, {&dbias, int64_t{0}}})
        for (int64_t i = 0; i < a->size(); ++i)
          if (pad == 0 || i % (c.hidden + pad) < c.hidden) a->set(i, 0.5);
    }
  }

  LinearCrossEntropyInputs inputs() const {
    return {.x = x_.data(),
            .weight = weight_.data(),
            .bias = c_.bias.empty() ? nullptr : bias_.data(),
            .targets = targets(),
            .rows = c_.rows,
            .hidden = c_.hidden,
            .vocab = c_.vocab,
            .dtype = s_.dtype,
            .ldx = s_.pad_x ? c_.hidden + s_.pad_x : 0,
            .ldw = s_.pad_weight ? c_.hidden + s_.pad_weight : 0};
  }
  LossTargets targets() const {
    if (!c_.probabilities.empty())
      return {.probabilities = probabilities_.data(),
              .probability_type = s_.probability_type,
              .ld_probabilities = s_.pad_probabilities ? c_.vocab + s_.pad_probabilities : 0};
    return {.index = s_.index == IndexType::kI32 ? static_cast<const void*>(labels32_.data())
                                                 : static_cast<const void*>(labels64_.data()),
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
    return {.gradient = upstream_.data(), .stride = c_.upstream.size() == 1 ? 0 : s_.upstream_stride};
  }
  LossOutputs outputs() {
    return {.loss = loss.data(),
            .loss_total = loss_total.data(),
            .row_loss = row_loss.data(),
            .offset = offset.data(),
            .logsum = logsum.data(),
            .z_loss = z_loss.data(),
            .row_max = row_max.data(),
            .row_entropy = with_row_results ? row_entropy.data() : nullptr,
            .argmax = with_row_results ? argmax_.data() : nullptr,
            .n_correct = with_row_results && c_.probabilities.empty() ? n_correct.data() : nullptr,
            .n_valid = n_valid.data(),
            .weight_sum = weight_sum.data(),
            .out_of_range = out_of_range.data(),
            .first_out_of_range = first_out_of_range.data()};
  }
  LinearCrossEntropyGradients gradients() {
    return {.dx = s_.with_dx ? dx.data() : nullptr,
            .dweight = s_.with_dweight ? dweight.data() : nullptr,
            .dbias = s_.with_dbias ? dbias.data() : nullptr,
            .accumulate_dx = s_.accumulate,
            .accumulate_dweight = s_.accumulate,
            .dx_in_accum_dtype = s_.dx_in_accum_dtype,
            .dweight_in_dtype = s_.dweight_in_dtype,
            .ld_dx = s_.pad_dx ? c_.hidden + s_.pad_dx : 0,
            .ld_dweight = s_.pad_dweight ? c_.hidden + s_.pad_dweight : 0};
  }

  template <class Args>
  void launch_with_workspace(const Exec& exec, Args& args, LossWorkspace& workspace) {
    on_gpu = !std::holds_alternative<CpuExec>(exec);
    workspace.budget_bytes = s_.budget_bytes;
    size_t bytes = workspace_bytes(exec, args);
    ASSERT_LE(bytes, s_.budget_bytes);
    Array scratch(DType::kBf16, static_cast<int64_t>(bytes / 2));  // NaN throughout, guarded
    workspace.data = scratch.data();
    workspace.size_bytes = bytes;
    run(exec, args);
    EXPECT_TRUE(scratch.guards_intact());
  }
  void forward(const Exec& exec) {
    LinearCrossEntropyForward args{.in = inputs(), .options = options(), .out = outputs(), .workspace = {}};
    launch_with_workspace(exec, args, args.workspace);
  }
  void backward(const Exec& exec) {
    LinearCrossEntropyBackward args{.in = inputs(),
                                    .options = options(),
                                    .offset = offset.data(),
                                    .logsum = logsum.data(),
                                    .upstream = upstream(),
                                    .grad = gradients(),
                                    .workspace = {}};
    launch_with_workspace(exec, args, args.workspace);
  }
  void forward_backward(const Exec& exec) {
    LinearCrossEntropyForwardBackward args{.in = inputs(),
                                           .options = options(),
                                           .out = outputs(),
                                           .upstream = upstream(),
                                           .grad = gradients(),
                                           .workspace = {}};
    launch_with_workspace(exec, args, args.workspace);
  }

 private:
  Array padded(const std::vector<double>& values, int64_t rows, int64_t cols, int64_t pad) const {
    Array a(s_.dtype, rows * (cols + pad));  // the padding stays NaN
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t h = 0; h < cols; ++h) a.set(i * (cols + pad) + h, values[i * cols + h]);
    return a;
  }

  const LossCase& c_;
  LossSetup s_;
  DType accum_;
  Array x_, weight_, bias_, upstream_, class_weights_, token_weights_, probabilities_;
  Scalar<double> divisor_;
  Vector<int32_t> labels32_;
  Vector<int64_t> labels64_, argmax_;

 public:
  Array dx, dweight, dbias, loss, z_loss, row_loss, offset, logsum, row_max, row_entropy;
  Scalar<double> loss_total{0}, weight_sum{-1};
  Scalar<int64_t> n_valid{-1}, out_of_range{-1}, first_out_of_range{-7}, n_correct{-7};
  bool with_row_results = true;  // entropy, argmax, n_correct: other kernels than without
  int64_t argmax(int64_t i) const { return argmax_[i]; }
  bool has_labels() const { return c_.probabilities.empty(); }
  bool is_label(int64_t i, int64_t v) const { return has_labels() && c_.labels[i] == v; }
  bool on_gpu = false;  // of the last call
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

// The bars on errors, from the largest |logit|.
inline double gradient_bar(DType dtype, double max_logit) {
  double ulp = dtype == DType::kF64 ? 0x1p-53 : 0x1p-24;
  return tolerance(dtype) + 4 * ulp * max_logit;
}
inline double loss_bar(DType dtype, double loss, double max_logit) {
  if (dtype == DType::kF64) return 1e-12 * (std::fabs(loss) + 1 + max_logit);
  return 1e-5 * std::fabs(loss) + 4 * 0x1p-24 * (1 + max_logit);
}

inline std::vector<double> plus(std::vector<double> values, double start) {
  for (double& v : values) v += start;
  return values;
}

// Logits closer than their rounding may change places.
inline void expect_argmax(const LossRun& got, const LossAnswer& want, DType dtype, int64_t i) {
  if (want.argmax[i] < 0) {
    ASSERT_EQ(got.argmax(i), -1) << "row " << i;
    return;
  }
  const int64_t vocab = std::ssize(want.z) / std::ssize(want.argmax);
  ASSERT_TRUE(got.argmax(i) >= 0 && got.argmax(i) < vocab) << "row " << i << ": " << got.argmax(i);
  ASSERT_GE(want.z[i * vocab + got.argmax(i)], want.row_max[i] - loss_bar(dtype, 0, want.max_logit)) << "row " << i;
}
inline void expect_loss(const LossRun& got, const LossAnswer& want, DType dtype) {
  EXPECT_NEAR(got.loss[0], want.loss, loss_bar(dtype, want.loss, want.max_logit));
  EXPECT_NEAR(got.loss_total, want.loss, loss_bar(dtype, want.loss, want.max_logit));
  EXPECT_NEAR(got.z_loss[0], want.z_loss, loss_bar(dtype, want.z_loss, want.max_logit));
  EXPECT_EQ(got.n_valid, want.n_valid);
  EXPECT_EQ(got.out_of_range, want.out_of_range);
  EXPECT_EQ(got.first_out_of_range, want.first_out_of_range);
  EXPECT_NEAR(got.weight_sum, want.weight_sum, 1e-12 * std::fabs(want.weight_sum));
  int64_t correct = 0;
  for (int64_t i = 0; i < got.row_loss.size(); ++i) {
    ASSERT_NEAR(got.row_loss[i], want.row_loss[i], loss_bar(dtype, want.row_loss[i], want.max_logit)) << "row " << i;
    ASSERT_NEAR(got.offset[i] + got.logsum[i], want.lse[i], loss_bar(dtype, want.lse[i], want.max_logit))
        << "row " << i;
    ASSERT_NEAR(got.row_max[i], want.row_max[i], loss_bar(dtype, want.row_max[i], want.max_logit)) << "row " << i;
    if (!got.with_row_results) continue;
    ASSERT_NEAR(got.row_entropy[i], want.entropy[i], loss_bar(dtype, want.entropy[i], want.max_logit)) << "row " << i;
    ASSERT_NO_FATAL_FAILURE(expect_argmax(got, want, dtype, i));
    correct += want.argmax[i] >= 0 && got.is_label(i, got.argmax(i)) ? 1 : 0;
  }
  if (got.with_row_results && got.has_labels()) {
    EXPECT_EQ(got.n_correct, correct);
  }
}
// Of sums over rows. The CPU keeps the logits' gradients of bf16 calls in fp32; a GPU rounds them first, and where rows
// cancel the sum shows it.
inline double weight_gradient_bar(DType dtype, bool on_gpu, double max_logit) {
  return on_gpu && size_of(dtype) == 2 ? 2 * gradient_bar(dtype, max_logit)
                                       : gradient_bar(accum_dtype(dtype), max_logit);
}
// Rows of `cols` values, `pad` more between them, that must still be NaN.
inline ::testing::AssertionResult close_rows(const Array& got, const std::vector<double>& want, int64_t cols,
                                             int64_t pad, double bar) {
  if (!got.guards_intact()) return ::testing::AssertionFailure() << "bytes outside the array were written";
  std::vector<double> values;
  for (int64_t i = 0; i < got.size(); ++i) {
    if (i % (cols + pad) < cols)
      values.push_back(got[i]);
    else if (!std::isnan(got[i]))
      return ::testing::AssertionFailure() << "padding was written at " << i;
  }
  const double error = relative_l2(values, want);
  if (error <= bar) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "relative L2 error " << error << " > " << bar;
}
inline void expect_gradients(const LossRun& got, const LossAnswer& want, const LossSetup& s) {
  const double bar = gradient_bar(s.dtype, want.max_logit), start = s.accumulate ? 0.5 : 0;
  const double weight_bar = weight_gradient_bar(s.dtype, got.on_gpu, want.max_logit);
  const double dweight_bar = s.dweight_in_dtype ? std::max(bar, weight_bar) : weight_bar;
  const int64_t hidden = got.inputs().hidden;
  if (s.with_dx) {
    EXPECT_TRUE(close_rows(got.dx, plus(want.dx, start), hidden, s.pad_dx, s.dx_in_accum_dtype ? weight_bar : bar))
        << "dx";
  }
  if (s.with_dweight) {
    EXPECT_TRUE(close_rows(got.dweight, plus(want.dweight, start), hidden, s.pad_dweight, dweight_bar)) << "dweight";
  }
  if (s.with_dbias) {
    EXPECT_TRUE(close(got.dbias, plus(want.dbias, start), dweight_bar)) << "dbias";
  }
}

}  // namespace xce::test

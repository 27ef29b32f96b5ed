// The bars on what a loss returns, in one place, and the comparisons of a run with the fp64 answer.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "tests/support/compare.h"
#include "tests/support/loss_call.h"

namespace xce::test {

// The bars on errors, from the largest |logit|.
inline double gradient_bar(DType dtype, double max_logit) {
  double ulp = dtype == DType::kF64 ? 0x1p-53 : 0x1p-24;
  return tolerance(dtype) + 4 * ulp * max_logit;
}
// Of sums over rows. The CPU keeps the logits' gradients of bf16 calls in fp32; a GPU rounds them first, and where rows
// cancel the sum shows it.
inline double weight_gradient_bar(DType dtype, bool on_gpu, double max_logit) {
  return on_gpu && size_of(dtype) == 2 ? 2 * gradient_bar(dtype, max_logit)
                                       : gradient_bar(accum_dtype(dtype), max_logit);
}
// `terms`: how often the logits' error enters a loss that weights and smoothing make larger or smaller.
inline double loss_bar(DType dtype, double loss, double max_logit, double terms = 1) {
  const double times = std::max(1.0, terms);
  if (dtype == DType::kF64) return 1e-12 * (std::fabs(loss) + times * (1 + max_logit));
  return 1e-5 * std::fabs(loss) + times * 4 * 0x1p-24 * (1 + max_logit);
}

inline std::vector<double> plus(std::vector<double> values, double start) {
  for (double& v : values) v += start;
  return values;
}
inline double norm(const std::vector<double>& values) {
  double squares = 0;
  for (double v : values) squares += v * v;
  return std::sqrt(squares);
}

struct Terms {
  double size = 0;     // root-sum-square of what a tensor's sums add up
  bool judge = false;  // bars are of this size even where the sums cancel
};
struct Width {
  int64_t cols, pad;
};
// Values rounded to dtype. What is zero for want of any term must be exactly zero; fp16's smallest step is allowed to
// each.
inline ::testing::AssertionResult close_values(const std::vector<double>& got, const std::vector<double>& want,
                                               DType dtype, double bar, Terms terms) {
  if (got.size() != want.size())
    return ::testing::AssertionFailure() << got.size() << " values instead of " << want.size();
  const double size = norm(want), scale = size > 0 && !terms.judge ? size : std::max(size, terms.size);
  const double steps = dtype == DType::kF16 ? 0x1p-25 * std::sqrt(static_cast<double>(want.size())) : 0;
  double squares = 0;
  for (size_t i = 0; i < want.size(); ++i) squares += (got[i] - want[i]) * (got[i] - want[i]);
  const double error = std::sqrt(squares);
  if (error <= bar * scale + steps) return ::testing::AssertionSuccess();  // NaN is not
  return ::testing::AssertionFailure() << "error " << error << " > " << bar << " * " << scale << ", relative L2 error "
                                       << error / size;
}
// Rows of `cols` values, `pad` more between them, that must still be NaN.
inline ::testing::AssertionResult close_rows(const Array& got, const std::vector<double>& want, Width width, double bar,
                                             Terms terms = {}) {
  if (!got.guards_intact()) return ::testing::AssertionFailure() << "bytes outside the array were written";
  std::vector<double> values;
  values.reserve(want.size());
  for (int64_t i = 0; i < got.size(); ++i) {
    if (i % (width.cols + width.pad) < width.cols)
      values.push_back(got[i]);
    else if (!std::isnan(got[i]))
      return ::testing::AssertionFailure() << "padding was written at " << i;
  }
  return close_values(values, want, got.dtype(), bar, terms);
}

// Whether v may be what a call names for the largest logit: logits closer than their rounding may change places.
inline bool may_be_argmax(const LossAnswer& want, DType dtype, int64_t i, int64_t v) {
  const int64_t vocab = std::ssize(want.z) / std::ssize(want.argmax);
  return v >= 0 && v < vocab && want.z[i * vocab + v] >= want.row_max[i] - loss_bar(dtype, 0, want.max_logit);
}
inline void expect_argmax(const LossCall& got, const LossAnswer& want, DType dtype, int64_t i) {
  if (want.argmax[i] < 0) {
    ASSERT_EQ(got.argmax(i), -1) << "row " << i;
  } else {
    ASSERT_TRUE(may_be_argmax(want, dtype, i, got.argmax(i)))
        << "row " << i << ": " << got.argmax(i) << " instead of " << want.argmax[i];
  }
}
inline void expect_n_correct(const LossCall& got, const LossAnswer& want, DType dtype) {
  int64_t least = 0, most = 0;
  for (int64_t i = 0; i < got.rows(); ++i) {
    if (want.argmax[i] < 0) continue;
    if (got.wants(LossCall::kArgmax)) {
      least += got.is_label(i, got.argmax(i)) ? 1 : 0;
      most += got.is_label(i, got.argmax(i)) ? 1 : 0;
      continue;
    }
    int64_t candidates = 0, right = 0;
    for (int64_t v = 0; v < got.vocab(); ++v) {
      if (!may_be_argmax(want, dtype, i, v)) continue;
      ++candidates;
      right += got.is_label(i, v) ? 1 : 0;
    }
    least += candidates == 1 ? right : 0;
    most += right;
  }
  EXPECT_GE(got.n_correct, least);
  EXPECT_LE(got.n_correct, most);
}

inline void expect_row_results(const LossCall& got, const LossAnswer& want, DType dtype) {
  const double max_logit = want.max_logit;
  for (int64_t i = 0; i < got.rows(); ++i) {
    auto expect_value = [&](LossCall::Output output, double value, double answer, double terms) {
      if (!got.wants(output)) return;
      ASSERT_NEAR(value, answer, loss_bar(dtype, answer, max_logit, terms)) << "row " << i << ", output " << output;
    };
    const bool poisoned = got.out_of_range_label(i) && got.setup().out_of_range_is_nan;
    if (poisoned && got.wants(LossCall::kRowLoss)) {
      ASSERT_TRUE(std::isnan(got.row_loss[i])) << "row " << i;
    } else {
      ASSERT_NO_FATAL_FAILURE(expect_value(LossCall::kRowLoss, got.row_loss[i], want.row_loss[i], want.row_terms[i]));
    }
    ASSERT_NO_FATAL_FAILURE(expect_value(LossCall::kResidual, got.offset[i] + got.logsum[i], want.lse[i], 1));
    ASSERT_NO_FATAL_FAILURE(expect_value(LossCall::kRowMax, got.row_max[i], want.row_max[i], 1));
    ASSERT_NO_FATAL_FAILURE(expect_value(LossCall::kRowEntropy, got.row_entropy[i], want.entropy[i], 1));
    if (got.wants(LossCall::kArgmax)) {
      ASSERT_NO_FATAL_FAILURE(expect_argmax(got, want, dtype, i));
    }
  }
}

// Everything a call returns but gradients.
inline void expect_loss(const LossCall& got, const LossAnswer& want, DType dtype) {
  const LossSetup& s = got.setup();
  const bool is_nan = (s.out_of_range_is_nan && want.out_of_range > 0) || (s.empty_is_nan && want.denominator == 0);
  const double bar = loss_bar(dtype, want.loss, want.max_logit, want.loss_terms);
  for (auto [output, value] : {std::pair{LossCall::kLoss, got.loss[0]}, {LossCall::kLossTotal, got.loss_total}}) {
    if (!got.wants(output)) continue;
    if (is_nan) {
      EXPECT_TRUE(std::isnan(value)) << value;
    } else {
      EXPECT_NEAR(value, want.loss, bar) << "output " << output;
    }
  }
  if (got.wants(LossCall::kZLoss)) {
    EXPECT_NEAR(got.z_loss[0], want.z_loss, loss_bar(dtype, want.z_loss, want.max_logit, want.loss_terms));
  }
  for (auto [output, value, answer] :
       {std::tuple{LossCall::kNValid, &got.n_valid, want.n_valid},
        {LossCall::kOutOfRange, &got.out_of_range, want.out_of_range},
        {LossCall::kFirstOutOfRange, &got.first_out_of_range, want.first_out_of_range}}) {
    if (got.wants(output)) {
      EXPECT_EQ(*value, answer) << "output " << output;
    }
  }
  if (got.wants(LossCall::kWeightSum)) {
    EXPECT_NEAR(got.weight_sum, want.weight_sum, 1e-12 * want.weight_terms);
  }
  if (got.wants(LossCall::kNCorrect)) expect_n_correct(got, want, dtype);
  expect_row_results(got, want, dtype);
  EXPECT_TRUE(got.outputs_guarded());
}

}  // namespace xce::test

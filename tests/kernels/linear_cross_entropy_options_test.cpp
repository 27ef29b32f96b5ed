// Every option of the fused loss alone and in the combinations that meet in one place, for every dtype; what each
// output and each kind of upstream gradient is, exactly.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/support/device_test.h"
#include "tests/support/loss_harness.h"
#include "tests/support/loss_options.h"

namespace xce::test {
namespace {

constexpr DType kDTypes[] = {DType::kF32, DType::kBf16, DType::kF16, DType::kF64};

class LinearCrossEntropyOptions : public DeviceTest {
 protected:
  // forward and backward, and both at once, at kept and at recomputed logits.
  void check_case(const LossCase& c, LossSetup s) const {
    const LossAnswer want = reference_linear_cross_entropy(c);
    for (double factor : {0.0, on_gpu() ? 6 : 1.5}) {
      s.budget_factor = factor;
      const Exec device = factor == 0 ? exec_by_turns() : one_thread();
      const LossRun fresh(c, s);
      LossRun two(c, s), one(c, s);
      two.forward(device);
      expect_loss(two, want, s.dtype);
      two.backward(device);
      expect_gradients(two, want);
      EXPECT_TRUE(two.inputs_equal(fresh));
      one.forward_backward(device);
      expect_loss(one, want, s.dtype);
      expect_gradients(one, want);
      EXPECT_TRUE(one.inputs_equal(fresh));
    }
  }
};
INSTANTIATE_TEST_SUITE_P(Devices, LinearCrossEntropyOptions, ::testing::ValuesIn(device_names()), device_name);

TEST_P(LinearCrossEntropyOptions, EveryOption) {
  for (DType dtype : kDTypes) {
    for (OptionCase& o : cases_of_every_option(dtype, [&] { return random_case(dtype, 37, 16, 523, 1); })) {
      SCOPED_TRACE(str(name_of(dtype), " ", o.name));
      o.s.by_terms = true;
      check_case(o.c, o.s);
    }
  }
}

// As bars on the result itself, where nothing cancels.
TEST_P(LinearCrossEntropyOptions, EveryOptionWithinPlainBars) {
  for (OptionCase& o : cases_of_every_option(DType::kF32, [] { return random_case(DType::kF32, 64, 32, 300, 2); })) {
    if (o.c.label_smoothing == 1 || o.c.logit_scale == 0) continue;
    SCOPED_TRACE(o.name);
    check_case(o.c, o.s);
  }
}

TEST_P(LinearCrossEntropyOptions, UpstreamOfEveryKind) {
  for (DType dtype : kDTypes) {
    for (double value : {0.0, 1.0, -2.0, 1e-3, 65536.0}) {
      LossCase c = random_case(dtype, 37, 16, 123, 3);
      c.label_smoothing = 0.1;
      LossSetup s{.dtype = dtype, .dx_in_accum_dtype = dtype == DType::kF16};  // 65536 is beyond fp16
      SCOPED_TRACE(str(name_of(dtype), " upstream ", value));
      c.upstream = {value};
      check_case(c, s);
      options::reduction(c, s, Reduction::kSum);
      check_case(c, s);
      options::reduction(c, s, Reduction::kNone);
      check_case(c, s);  // an expanded scalar: stride 0
      c.upstream.assign(c.rows, value);
      c.upstream[5] = 0.25, c.upstream[6] = 0;
      for (int64_t stride : {1, 4, -2}) {
        s.upstream_stride = stride;
        check_case(c, s);
      }
    }
  }
}

TEST_P(LinearCrossEntropyOptions, UpstreamNanReachesItsRowsAlone) {
  for (bool per_row : {false, true}) {
    LossCase c = random_case(DType::kF32, 12, 8, 33, 4);
    LossSetup s;
    c.labels[4] = c.ignore_index, c.labels[5] = 33, c.labels[6] = 3;
    c.label_smoothing = 0.1;
    if (per_row) options::row_upstream(c, s, 2);
    if (!per_row) c.upstream = {std::nan("")};
    for (int64_t i : {4, 5, 6})
      if (per_row) c.upstream[i] = std::nan("");
    LossRun got(c, s);
    got.forward_backward(exec());
    EXPECT_TRUE(std::isfinite(got.loss[0]));
    for (int64_t i = 0; i < c.rows; ++i)
      EXPECT_EQ(std::isnan(got.dx[i * c.hidden]), per_row ? i == 6 : c.valid(i)) << i;
    for (int64_t i : {4, 5}) EXPECT_EQ(got.dx[i * c.hidden], 0);
  }
}

// Several tiles of the vocabulary, so that what is rounded is the sum over all rows and not a part of it.
TEST_P(LinearCrossEntropyOptions, DweightInDtypeIsRoundedOnce) {
  for (DType dtype : kDTypes) {
    LossCase c = random_case(dtype, 200, 16, 1500, 5);
    for (bool with_dx : {true, false}) {
      LossSetup s{.dtype = dtype, .with_dx = with_dx, .dweight_in_dtype = true, .pad_dweight = 3};
      check_case(c, s);
      if (size_of(dtype) > 2) continue;
      LossSetup full = s;
      full.dweight_in_dtype = false;
      LossRun got(c, s), unrounded(c, full);
      got.forward_backward(exec());
      unrounded.forward_backward(exec());
      int64_t different = 0;
      for (int64_t i = 0; i < got.dweight.size(); ++i) {
        Array one(dtype, 1);
        one.set(0, unrounded.dweight[i]);
        if (!std::isnan(got.dweight[i]) && got.dweight[i] != one[0]) ++different;
      }
      // Another order of summing may move a value that lies between two.
      EXPECT_LE(different, got.dweight.size() / 50) << name_of(dtype);
    }
  }
}

TEST_P(LinearCrossEntropyOptions, LeadingDimensionsOfGradients) {
  for (DType dtype : kDTypes) {
    LossCase c = random_case(dtype, 37, 15, 123, 6);
    for (bool accumulate : {false, true})
      check_case(
          c, {.dtype = dtype, .pad_x = 1, .pad_weight = 2, .accumulate = accumulate, .pad_dx = 5, .pad_dweight = 3});
  }
}

// A gradient of fp16 logits under a mean over many rows is below fp16's smallest normal value.
TEST_P(LinearCrossEntropyOptions, Fp16MeanOverManyRowsKeepsDweight) {
  for (double upstream : {1.0, 1e-3}) {
    LossCase c = random_case(DType::kF16, 6000, 4, 64, 7);
    c.upstream = {upstream};
    check_case(c, {.dtype = DType::kF16, .dx_in_accum_dtype = true});
  }
}

TEST_P(LinearCrossEntropyOptions, ArgmaxOfTiesIsTheLowest) {
  for (DType dtype : kDTypes) {
    LossCase c = random_case(dtype, 40, 8, 1400, 8, 1, false);
    for (double& x : c.x) x = std::clamp(std::round(x), -1.0, 1.0);  // small whole numbers: exact in any order
    for (double& w : c.weight) w = std::clamp(std::round(4 * w), -3.0, 3.0);
    for (int64_t v = 700; v < c.vocab; ++v)  // columns v and v - 700 are equal, tiles apart
      for (int64_t h = 0; h < c.hidden; ++h) c.weight[v * c.hidden + h] = c.weight[(v - 700) * c.hidden + h];
    for (double factor : {0.0, 1.5}) {
      LossSetup s{.dtype = dtype, .budget_factor = factor};
      const LossAnswer want = reference_linear_cross_entropy(c);
      LossRun got(c, s);
      got.forward_backward(exec());
      expect_loss(got, want, dtype);
      for (int64_t i = 0; i < c.rows; ++i) EXPECT_LT(got.argmax(i), 700) << i;
    }
    c.logit_scale = 0;  // all equal: the first
    LossRun got(c, {.dtype = dtype});
    got.forward(exec());
    for (int64_t i = 0; i < c.rows; ++i) EXPECT_EQ(got.argmax(i), c.valid(i) ? 0 : -1) << i;
  }
}

TEST_P(LinearCrossEntropyOptions, NCorrectCountsValidRowsAlone) {
  LossCase c = random_case(DType::kF32, 60, 16, 700, 9);
  LossAnswer first = reference_linear_cross_entropy(c);
  for (int64_t i = 0; i < 30; ++i)
    if (first.argmax[i] >= 0) c.labels[i] = first.argmax[i];
  options::token_weights(c, {});
  LossAnswer want = reference_linear_cross_entropy(c);
  ASSERT_GT(want.n_correct, 15);
  LossRun got(c, {}), alone(c, {.omit = ~uint32_t{LossCall::kNCorrect | LossCall::kResidual}});
  got.forward(exec());
  EXPECT_EQ(got.n_correct, want.n_correct);
  alone.forward_backward(exec());
  EXPECT_EQ(alone.n_correct, want.n_correct);
  EXPECT_TRUE(alone.outputs_guarded());
}

// Of flat rows log V; of peaked ones next to nothing, and never below it by more than rounding.
TEST_P(LinearCrossEntropyOptions, EntropyOfFlatAndPeakedRows) {
  for (DType dtype : kDTypes) {
    LossCase c = random_case(dtype, 20, 8, 900, 10, 1, false);
    c.x.assign(c.x.size(), 0);
    LossRun flat(c, {.dtype = dtype});
    flat.forward(exec());
    c.bias.assign(c.vocab, 0);
    c.bias[77] = 64;
    const LossAnswer want = reference_linear_cross_entropy(c);
    LossRun peaked(c, {.dtype = dtype});
    peaked.forward(exec());
    for (int64_t i = 0; i < c.rows; ++i) {
      EXPECT_NEAR(flat.row_entropy[i], c.valid(i) ? std::log(900.0) : 0, dtype == DType::kF64 ? 1e-13 : 1e-5);
      EXPECT_NEAR(peaked.row_entropy[i], want.entropy[i], loss_bar(dtype, 0, 0));
    }
    expect_loss(peaked, want, dtype);
  }
}

TEST_P(LinearCrossEntropyOptions, WeightSumAndFirstOutOfRange) {
  LossCase c = random_case(DType::kF32, 50, 8, 60, 11);
  c.labels[30] = 60, c.labels[31] = -5, c.labels[49] = int64_t{1} << 35;
  options::class_weights(c, {});
  options::token_weights(c, {});
  LossSetup s{.omit = ~uint32_t{LossCall::kWeightSum | LossCall::kFirstOutOfRange | LossCall::kResidual}};
  LossAnswer want = reference_linear_cross_entropy(c);
  LossRun got(c, s);
  got.forward(exec());
  EXPECT_NEAR(got.weight_sum, want.weight_sum, 1e-12 * want.weight_sum);
  EXPECT_EQ(got.first_out_of_range, 30);
  c.labels[30] = c.labels[31] = c.labels[49] = 1;
  LossRun none(c, s);
  none.forward(exec());
  EXPECT_EQ(none.first_out_of_range, -1);
}

TEST_P(LinearCrossEntropyOptions, NanPolicies) {
  LossCase c = random_case(DType::kF32, 30, 8, 60, 12);
  c.labels[3] = 60, c.labels[4] = 7;
  check_case(c, {.out_of_range_is_nan = true});
  c.labels[3] = c.ignore_index;
  check_case(c, {.out_of_range_is_nan = true});  // no such label: no NaN
  check_case(c, {.empty_is_nan = true});
  c.labels.assign(c.rows, c.ignore_index);
  check_case(c, {.empty_is_nan = true});
  check_case(c, {});
  LossSetup s{.empty_is_nan = true};
  c.labels.assign(c.rows, 5);
  options::denominator(c, s, 0);
  check_case(c, s);
}

// Never 0 * inf: valid rows of inputs and weights that are not finite.
TEST_P(LinearCrossEntropyOptions, ADenominatorOfZeroGivesZeros) {
  for (DType dtype : kDTypes) {
    LossCase c = random_case(dtype, 30, 8, 60, 12);
    std::fill_n(c.x.begin() + 5 * 8, 8, std::numeric_limits<double>::infinity());
    std::fill_n(c.weight.begin() + 7 * 8, 8, std::nan(""));
    for (double smoothing : {0.0, 0.1}) {  // plain rows have kernels of their own
      c.label_smoothing = smoothing;
      LossSetup s{.dtype = dtype};
      options::denominator(c, s, 0);
      LossRun both(c, s), two(c, s);
      both.forward_backward(exec());
      two.forward(exec());
      two.backward(exec());
      for (const LossRun* got : {&both, &two})
        for (const Array* a : {&got->dx, &got->dweight, &got->dbias, &got->loss})
          for (int64_t i = 0; i < a->size(); ++i) ASSERT_EQ((*a)[i], 0) << name_of(dtype) << " " << smoothing;
    }
  }
}

TEST_P(LinearCrossEntropyOptions, LossTotalIsAddedTo) {
  LossCase c = random_case(DType::kF32, 30, 8, 60, 13);
  const LossAnswer want = reference_linear_cross_entropy(c);
  LossRun got(c, {});
  for (int k = 1; k <= 3; ++k) {
    got.forward(exec());
    EXPECT_NEAR(got.loss_total, k * want.loss, k * loss_bar(DType::kF32, want.loss, want.max_logit));
  }
}

TEST_P(LinearCrossEntropyOptions, EveryOutputMayBeNull) {
  LossCase c = random_case(DType::kF32, 30, 8, 200, 14);
  c.z_loss = 0.01, c.label_smoothing = 0.1;
  for (uint32_t bit = 1; bit <= LossCall::kResidual; bit *= 2) {
    for (uint32_t omit : {bit, ~bit}) {
      LossSetup s{.omit = omit};
      LossRun got(c, s);
      got.forward_backward(exec());
      const LossAnswer want = reference_linear_cross_entropy(c);
      SCOPED_TRACE(str("without outputs ", omit));
      expect_loss(got, want, s.dtype);
      expect_gradients(got, want);
    }
  }
}

}  // namespace
}  // namespace xce::test

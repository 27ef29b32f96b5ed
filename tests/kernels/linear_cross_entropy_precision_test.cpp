// What the types of a call mean for its gradients: fp16's range is no limit to the logits' gradients, a weight gradient
// in dtype is rounded once, TF32 is taken only where it is asked for.
#include <gtest/gtest.h>

#include "tests/support/device_test.h"
#include "tests/support/loss_harness.h"

namespace xce::test {
namespace {

class LinearCrossEntropyPrecision : public DeviceTest {};
INSTANTIATE_TEST_SUITE_P(Devices, LinearCrossEntropyPrecision, ::testing::ValuesIn(device_names()), device_name);

// Gradients of logits from 1e-12 to 1e6, where fp16 has 6e-8 to 65504.
TEST_P(LinearCrossEntropyPrecision, FP16GradientsOfAnySize) {
  LossCase c = random_case(DType::kF16, 48, 40, 300, 11);
  LossSetup s{.dtype = DType::kF16, .reduction = Reduction::kSum, .with_dx = true, .dx_in_accum_dtype = true};
  for (double upstream : {1e-9, 1e-4, 1.0, 1e6}) {
    for (double budget : {0.0, 1.5}) {
      SCOPED_TRACE(str("upstream ", upstream, " budget ", budget));
      c.own_mean = false, c.divisor = 1, c.upstream = {upstream};
      s.budget_factor = budget;
      const LossAnswer want = reference_linear_cross_entropy(c);
      LossRun both(c, s);
      both.forward_backward(exec());
      expect_gradients(both, want);
      LossRun apart(c, s);
      apart.forward(exec());
      apart.backward(exec());
      expect_gradients(apart, want);
    }
  }
}

// Rows whose factors differ by 2^12 share a scale; the small ones' error is of the large ones' size.
TEST_P(LinearCrossEntropyPrecision, FP16GradientsOfUnequalRows) {
  LossCase c = random_case(DType::kF16, 48, 40, 300, 12);
  for (int64_t i = 0; i < c.rows; ++i)
    c.upstream.push_back(std::ldexp(i % 3 == 0 ? -1.0 : 1.0, -static_cast<int>(i % 13)));
  const LossSetup s{.dtype = DType::kF16, .reduction = Reduction::kNone, .dx_in_accum_dtype = true};
  c.own_mean = false, c.divisor = 1;
  const LossAnswer want = reference_linear_cross_entropy(c);
  LossRun run(c, s);
  run.forward_backward(exec());
  expect_gradients(run, want);
}

// What fp32 sums give, rounded: half a step of each element at most, and what the order of sums leaves.
TEST_P(LinearCrossEntropyPrecision, AWeightGradientInDTypeIsRoundedOnce) {
  for (DType dtype : {DType::kBf16, DType::kF16}) {
    const LossCase c = random_case(dtype, 200, 40, 300, 13);
    LossSetup s{.dtype = dtype};
    LossRun exact(c, s);
    exact.forward_backward(exec());
    const double half_step = dtype == DType::kBf16 ? 0x1p-8 : 0x1p-11;
    s.dweight_in_dtype = true;
    for (double budget : {0.0, 1.0, 2.0}) {
      s.budget_factor = budget;
      LossRun run(c, s);
      run.forward_backward(exec());
      for (auto [got, want] : {std::pair{&run.dweight, &exact.dweight}, {&run.dbias, &exact.dbias}})
        for (int64_t i = 0; i < want->size(); ++i)
          ASSERT_NEAR((*got)[i], (*want)[i], 1.01 * half_step * std::fabs((*want)[i]) + 1e-6)
              << name_of(dtype) << " budget " << budget << " element " << i;
    }
  }
}

TEST_P(LinearCrossEntropyPrecision, TF32OnlyWhereItIsAskedFor) {
  const LossCase c = random_case(DType::kF32, 96, 256, 320, 14);
  const LossAnswer want = reference_linear_cross_entropy(c);
  const LossSetup s{.dtype = DType::kF32};
  LossRun plain(c, s);
  plain.forward_backward(exec());
  expect_gradients(plain, want);
  LossRun tf32(c, s);
  LinearCrossEntropyForwardBackward args{.in = tf32.inputs(),
                                         .options = tf32.options(),
                                         .out = tf32.outputs(),
                                         .upstream = tf32.upstream(),
                                         .grad = tf32.gradients(),
                                         .workspace = {}};
  args.in.allow_tf32 = true;
  tf32.launch_with_workspace(exec(), args, args.workspace);
  if (on_gpu()) {
    const double error = relative_l2(tf32.dx.values(), want.dx);
    EXPECT_GT(error, 1e-5) << "not TF32's 10 bits";
    EXPECT_LT(error, 2e-3);
  } else {
    EXPECT_TRUE(tf32.dx.same_bits(plain.dx)) << "means nothing to a CPU";
  }
}

}  // namespace
}  // namespace xce::test

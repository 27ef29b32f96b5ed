#include <gtest/gtest.h>

#include <cmath>

#include "src/ops/ops.h"
#include "tests/support/tape_rig.h"

namespace xce {
namespace {

using test::Leaf;
using test::TapeRig;

const Leaf kH{{6, 5}}, kWeight{{11, 5}, true};
const int32_t kTargets[] = {3, -100, 0, 10, -100, 3};

class LinearCrossEntropyOp : public ::testing::Test {
 protected:
  double loss_ = 0, denominator_ = 4;
  LossIo io(const LossTerms& terms = {}) {
    return {.targets = {kTargets, 6},
            .denominator = &denominator_,
            .loss = &loss_,
            .terms = terms,
            .workspace_bytes = int64_t{1} << 20};
  }
  TapeRig rig(const LossTerms& terms = {}) {
    return TapeRig(
        {kH, kWeight},
        [this, terms](Tape&, const std::vector<Var>& in) {
          linear_cross_entropy(in[0], in[1], io(terms));
          return Var();
        },
        &loss_);
  }
};

double reference(const test::Values& values, double denominator, const LossTerms& terms) {
  double loss = 0;
  for (int r = 0; r < 6; ++r) {
    if (kTargets[r] < 0) continue;
    double sum = 0, label = 0, all = 0;
    for (int v = 0; v < 11; ++v) {
      double z = 0;
      for (int i = 0; i < 5; ++i) z += values[0][r * 5 + i] * values[1][v * 5 + i];
      sum += std::exp(z);
      all += z / 11;
      if (v == kTargets[r]) label = z;
    }
    double lse = std::log(sum);
    const double e = terms.label_smoothing;
    loss += (lse - (1 - e) * label - e * all + terms.z_loss * lse * lse) / denominator;
  }
  return loss;
}

TEST_F(LinearCrossEntropyOp, LossIsTheSumOverValidTargetsByTheDenominator) {
  for (LossTerms terms : {LossTerms{}, LossTerms{.z_loss = 0.3}, LossTerms{.z_loss = 0.1, .label_smoothing = 0.2}})
    for (double denominator : {4.0, 9.0}) {
      denominator_ = denominator;
      test::Values values = rig().random_values(DType::kF64);
      double want = reference(values, denominator, terms);
      EXPECT_NEAR(rig(terms).run(values, DType::kF64, test::cpu_exec(3)).scalar, want, 1e-13 * want);
    }
}

TEST_F(LinearCrossEntropyOp, Gradients) {
  rig().expect_gradients();
  rig({.z_loss = 0.3}).expect_gradients();
  rig({.label_smoothing = 0.2}).expect_gradients();
  rig({.z_loss = 0.3, .label_smoothing = 0.2}).expect_dtypes_agree();
  denominator_ = 9;
  rig().expect_gradients();
}

TEST_F(LinearCrossEntropyOp, HiddenStatesAndHeadUsedTwice) {
  TapeRig rig(
      {kH, {{5, 5}, true}},
      [this](Tape&, const std::vector<Var>& in) {
        static const int32_t targets[] = {3, -100, 0, 4, -100, 3};
        LossIo both = io({.z_loss = 0.1});
        both.targets.ids = targets;
        linear_cross_entropy(add(in[0], linear(in[0], in[1])), in[1], both);
        linear_cross_entropy(in[0], in[1], both);
        return Var();
      },
      &loss_);
  rig.expect_gradients();
  rig.expect_dtypes_agree();
}

TEST_F(LinearCrossEntropyOp, WithoutRecordingTheLossIsTheSameAndNothingIsKept) {
  ParameterSet parameters(DType::kF64);
  parameters.add({.name = "head", .rows = 11, .cols = 5, .unit = 0, .init_stddev = 1});
  parameters.allocate();
  test::Values values = rig().random_values(DType::kF64);
  TapeRig::write(parameters.master(), DType::kF64, values[1], false);
  std::vector<char> memory(1 << 21);
  Arena arena(memory.data(), memory.size());
  arena.poison_free();
  Tape tape(test::cpu_exec(2), arena, parameters);
  tape.set_recording(false);
  std::vector<double> no_gradient;
  Var h = TapeRig::leaf(tape, kH.shape, values[0], &no_gradient);
  size_t in_use = arena.in_use_bytes();
  loss_ = 100;
  linear_cross_entropy(h, tape.parameter(0), io({.z_loss = 0.3}));
  EXPECT_NEAR(loss_, 100 + reference(values, 4, {.z_loss = 0.3}), 1e-12) << "it adds to what is there";
  EXPECT_EQ(tape.recorded_steps(), 0u);
  EXPECT_EQ(arena.in_use_bytes(), in_use);
}

// The promise of the whole library: no memory of the size of the logits, 2 GiB here.
TEST(LinearCrossEntropyMemory, TheStepNeedsItsBudgetAndWhatIsLinearInTokens) {
  const int64_t tokens = 4096, hidden = 64, vocab = 131072, budget = int64_t{64} << 20;
  const LossIo io{.targets = {nullptr, tokens}, .denominator = nullptr, .loss = nullptr, .workspace_bytes = budget};
  for (DType dtype : {DType::kF32, DType::kBf16}) {
    ParameterSet parameters(dtype);
    parameters.add({.name = "head", .rows = vocab, .cols = hidden, .unit = 0, .init_stddev = 1});
    Arena plan;
    Tape tape(test::cpu_exec(2), plan, parameters);
    Var h = tape.make({tokens, hidden});
    const size_t kept = plan.in_use_bytes();
    linear_cross_entropy(h, tape.parameter(0), io);
    EXPECT_EQ(plan.peak_bytes(), kept) << "the forward needs nothing";
    h = Var();
    tape.backward();
    const size_t dh = static_cast<size_t>(tokens * hidden) * size_of(dtype);
    EXPECT_LE(plan.peak_bytes(), kept + dh + static_cast<size_t>(budget)) << name_of(dtype);
    EXPECT_GT(plan.peak_bytes(), kept + dh);
    EXPECT_EQ(plan.in_use_bytes(), 0u);

    Arena evaluation;
    Tape unrecorded(test::cpu_exec(2), evaluation, parameters);
    unrecorded.set_recording(false);
    linear_cross_entropy(unrecorded.make({tokens, hidden}), unrecorded.parameter(0), io);
    EXPECT_LE(evaluation.peak_bytes(), kept + static_cast<size_t>(budget)) << name_of(dtype);
  }
}

}  // namespace
}  // namespace xce

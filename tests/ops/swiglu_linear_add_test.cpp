#include <gtest/gtest.h>

#include <cmath>

#include "kernels/base/check.h"
#include "src/ops/ops.h"
#include "tests/support/tape_rig.h"

namespace xce {
namespace {

using test::Leaf;
using test::TapeRig;

const Leaf kResidual{{4, 3}}, kGateUp{{4, 10}}, kWeight{{3, 5}, true};

Var op(Tape&, const std::vector<Var>& in) {
  return swiglu_linear_add(in[0], in[1], in[2]);
}

TEST(SwigluLinearAddOp, Forward) {
  TapeRig rig({kResidual, kGateUp, kWeight}, op);
  test::Values values = rig.random_values(DType::kF64);
  std::vector<double> want = values[0];
  for (int r = 0; r < 4; ++r)
    for (int o = 0; o < 3; ++o)
      for (int i = 0; i < 5; ++i) {
        double gate = values[1][r * 10 + i], up = values[1][r * 10 + 5 + i];
        want[r * 3 + o] += gate / (1 + std::exp(-gate)) * up * values[2][o * 5 + i];
      }
  EXPECT_LE(test::relative_l2(rig.run(values, DType::kF64, test::cpu_exec(3)).y, want), 1e-14);
}

TEST(SwigluLinearAddOp, Gradients) {
  TapeRig rig({kResidual, kGateUp, kWeight}, op);
  rig.expect_gradients();
  rig.expect_dtypes_agree();
}

// As in a block: the residual is also what gate and up are made of.
TEST(SwigluLinearAddOp, ResidualIsTheBranchInput) {
  TapeRig rig({kResidual, {{10, 3}, true}, kWeight},
              [](Tape&, const std::vector<Var>& in) { return swiglu_linear_add(in[0], linear(in[0], in[1]), in[2]); });
  rig.expect_gradients();
  rig.expect_dtypes_agree();
}

// Two users of one weight: the second gradient is added to the first.
TEST(SwigluLinearAddOp, WeightUsedTwice) {
  TapeRig rig({kResidual, kGateUp, kGateUp, kWeight}, [](Tape&, const std::vector<Var>& in) {
    return swiglu_linear_add(swiglu_linear_add(in[0], in[1], in[3]), in[2], in[3]);
  });
  rig.expect_gradients();
}

// The other user's step is played later: it needs gate_up's values, and is the one that adds.
TEST(SwigluLinearAddOp, GateUpWithAnEarlierUser) {
  TapeRig rig({kResidual, kGateUp, kWeight, {{3, 10}, true}}, [](Tape&, const std::vector<Var>& in) {
    Var other = linear(in[1], in[3]);
    return add(other, swiglu_linear_add(in[0], in[1], in[2]));
  });
  rig.expect_gradients();
}

// Its kernel can only overwrite: a gradient that is already there is refused, not lost.
TEST(SwigluLinearAddOp, RefusesAGateUpWhoseGradientIsAlreadyWritten) {
  TapeRig rig({kResidual, kGateUp, kWeight}, [](Tape&, const std::vector<Var>& in) {
    return add(swiglu_linear_add(in[0], in[1], in[2]), swiglu_linear_add(in[0], in[1], in[2]));
  });
  EXPECT_THROW(rig.run(rig.random_values(DType::kF64), DType::kF64, test::cpu_exec(1)), Error);
}

TEST(SwigluLinearAddOp, RefusesWrongShapes) {
  ParameterSet parameters(DType::kF32);
  Arena arena;
  Tape tape(test::cpu_exec(1), arena, parameters);
  EXPECT_THROW(swiglu_linear_add(tape.make({4, 4}), tape.make({4, 10}), tape.make({3, 5})), Error);
  EXPECT_THROW(swiglu_linear_add(tape.make({4, 3}), tape.make({4, 9}), tape.make({3, 5})), Error);
}

// What is kept is gate_up alone, whose gradient takes its place: at the peak, in the backward, stand gate_up, dy (where
// y was) and the activation.
TEST(SwigluLinearAddOp, Memory) {
  const int64_t rows = 64, hidden = 32, inner = 128;
  ParameterSet parameters(DType::kF32);
  int index = parameters.add({.name = "down", .rows = hidden, .cols = inner, .unit = 0, .init_stddev = 1});
  parameters.allocate();
  Arena plan;
  Tape tape(test::cpu_exec(1), plan, parameters);
  const size_t row = rows * sizeof(float);
  {
    Var y;
    {
      Var residual = tape.make({rows, hidden}), gate_up = tape.make({rows, 2 * inner});
      y = swiglu_linear_add(residual, gate_up, tape.parameter(index));
    }
    EXPECT_EQ(plan.in_use_bytes(), row * (2 * inner + hidden)) << "gate_up, and y while it has a handle";
    TapeRig::seed_gradient(y, TapeRig::coefficients(y.shape().size()));
  }
  EXPECT_EQ(plan.peak_bytes(), row * (3 * inner + 2 * hidden)) << "forward: residual, gate_up, y, activation";
  tape.backward();
  EXPECT_EQ(plan.peak_bytes(), row * (3 * inner + 2 * hidden)) << "the backward needs no more";
  EXPECT_EQ(plan.in_use_bytes(), 0u);
}

}  // namespace
}  // namespace xce

#include <gtest/gtest.h>

#include "src/ops/ops.h"
#include "tests/support/tape_rig.h"

namespace xce {
namespace {

using test::Leaf;
using test::TapeRig;

const Leaf kX{{4, 6}}, kWeight{{3, 6}, true}, kSquare{{6, 6}, true, 0.5};

TEST(LinearOp, Forward) {
  TapeRig rig({kX, kWeight}, [](Tape&, const std::vector<Var>& in) { return linear(in[0], in[1]); });
  test::Values values = rig.random_values(DType::kF64);
  std::vector<double> want(4 * 3, 0.0);
  for (int r = 0; r < 4; ++r)
    for (int o = 0; o < 3; ++o)
      for (int i = 0; i < 6; ++i) want[r * 3 + o] += values[0][r * 6 + i] * values[1][o * 6 + i];
  EXPECT_LE(test::relative_l2(rig.run(values, DType::kF64, test::cpu_exec(3)).y, want), 1e-14);
}

TEST(LinearOp, Gradients) {
  TapeRig rig({kX, kWeight}, [](Tape&, const std::vector<Var>& in) { return linear(in[0], in[1]); });
  rig.expect_gradients();
  rig.expect_dtypes_agree();
}

TEST(LinearOp, InputAndWeightUsedTwice) {
  TapeRig rig({kX, kSquare}, [](Tape&, const std::vector<Var>& in) {
    return add(linear(linear(in[0], in[1]), in[1]), linear(in[0], in[1]));
  });
  rig.expect_gradients();
  rig.expect_dtypes_agree();
}

// The input's gradient lies in memory that another value's gradient shares when linear adds to it.
TEST(LinearOp, AddsToASharedGradient) {
  TapeRig rig({kX, kX, kSquare}, [](Tape&, const std::vector<Var>& in) {
    Var z = linear(in[0], in[2]);
    return add(z, add(in[0], in[1]));
  });
  rig.expect_gradients();
}

// The same values and gradients as the two ops it joins.
TEST(LinearAddOp, IsAddOfLinear) {
  TapeRig joined({kX, kX, kSquare}, [](Tape&, const std::vector<Var>& in) { return linear_add(in[0], in[1], in[2]); });
  TapeRig apart({kX, kX, kSquare}, [](Tape&, const std::vector<Var>& in) { return add(in[0], linear(in[1], in[2])); });
  test::Values values = joined.random_values(DType::kF64);
  EXPECT_LE(test::relative_l2(joined.run(values, DType::kF64, test::cpu_exec(3)).y,
                              apart.run(values, DType::kF64, test::cpu_exec(3)).y),
            1e-14);
  joined.expect_gradients();
  joined.expect_dtypes_agree();
}

// As in a block: the residual is used before and is the branch's own input.
TEST(LinearAddOp, ResidualIsTheBranchInput) {
  TapeRig rig({kX, kSquare}, [](Tape&, const std::vector<Var>& in) {
    Var h = linear_add(in[0], linear(in[0], in[1]), in[1]);
    return linear_add(h, linear(h, in[1]), in[1]);
  });
  rig.expect_gradients();
}

TEST(LinearAddOp, RefusesAResidualOfAnotherShape) {
  ParameterSet parameters(DType::kF32);
  Arena arena;
  Tape tape(test::cpu_exec(1), arena, parameters);
  EXPECT_THROW(linear_add(tape.make({4, 5}), tape.make({4, 6}), tape.make({6, 6})), Error);
}

}  // namespace
}  // namespace xce

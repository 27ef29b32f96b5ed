#include <gtest/gtest.h>

#include "kernels/base/check.h"
#include "src/ops/ops.h"
#include "tests/support/tape_rig.h"

namespace xce {
namespace {

using test::Leaf;
using test::TapeRig;

const Leaf kX{{3, 5}};

TEST(AddOp, SumsAndPassesTheGradientToBoth) {
  TapeRig rig({kX, kX}, [](Tape&, const std::vector<Var>& in) { return add(in[0], in[1]); });
  test::Values values = rig.random_values(DType::kF64);
  test::RigResult r = rig.run(values, DType::kF64, test::cpu_exec(3));
  for (size_t i = 0; i < r.y.size(); ++i) EXPECT_EQ(r.y[i], values[0][i] + values[1][i]);
  rig.expect_gradients();
  rig.expect_dtypes_agree();
}

TEST(AddOp, OfAValueWithItself) {
  TapeRig rig({kX}, [](Tape&, const std::vector<Var>& in) { return add(in[0], in[0]); });
  rig.expect_gradients();
}

// The sum's gradient is shared by both sides until one of them grows.
TEST(AddOp, OneSideUsedAgainLeavesTheOtherAlone) {
  TapeRig before({kX, kX}, [](Tape&, const std::vector<Var>& in) {
    Var twice = add(in[0], in[0]);
    return add(twice, add(in[0], in[1]));
  });
  before.expect_gradients();
  TapeRig chain({kX, kX, kX}, [](Tape&, const std::vector<Var>& in) {
    Var h = add(in[0], in[1]), g = add(h, in[2]);
    return add(add(h, g), add(g, in[1]));
  });
  chain.expect_gradients();
}

TEST(AddOp, RefusesDifferentShapes) {
  ParameterSet parameters(DType::kF32);
  Arena arena;
  Tape tape(test::cpu_exec(1), arena, parameters);
  EXPECT_THROW(add(tape.make({3, 5}), tape.make({5, 3})), Error);
}

}  // namespace
}  // namespace xce

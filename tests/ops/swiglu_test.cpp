#include <gtest/gtest.h>

#include <cmath>

#include "kernels/base/check.h"
#include "src/ops/ops.h"
#include "tests/support/tape_rig.h"

namespace xce {
namespace {

using test::Leaf;
using test::TapeRig;

const Leaf kX{{4, 10}};

TEST(SwigluOp, Forward) {
  TapeRig rig({kX}, [](Tape&, const std::vector<Var>& in) { return swiglu(in[0]); });
  test::Values values = rig.random_values(DType::kF64);
  std::vector<double> want;
  for (int r = 0; r < 4; ++r)
    for (int i = 0; i < 5; ++i) {
      double gate = values[0][r * 10 + i], up = values[0][r * 10 + 5 + i];
      want.push_back(gate / (1 + std::exp(-gate)) * up);
    }
  EXPECT_LE(test::relative_l2(rig.run(values, DType::kF64, test::cpu_exec(3)).y, want), 1e-14);
}

TEST(SwigluOp, Gradients) {
  TapeRig rig({kX}, [](Tape&, const std::vector<Var>& in) { return swiglu(in[0]); });
  rig.expect_gradients();
  rig.expect_dtypes_agree();
}

// The other user's step is played after swiglu's, so it is the one that adds.
TEST(SwigluOp, InputWithAnEarlierUser) {
  TapeRig rig({kX, {{5, 10}, true}}, [](Tape&, const std::vector<Var>& in) {
    Var other = linear(in[0], in[1]);
    return add(other, swiglu(in[0]));
  });
  rig.expect_gradients();
}

// Its kernel can only overwrite: a gradient that is already there is refused, not lost.
TEST(SwigluOp, RefusesAnInputWhoseGradientIsAlreadyWritten) {
  TapeRig rig({kX}, [](Tape&, const std::vector<Var>& in) { return add(swiglu(in[0]), swiglu(in[0])); });
  EXPECT_THROW(rig.run(rig.random_values(DType::kF64), DType::kF64, test::cpu_exec(1)), Error);
}

}  // namespace
}  // namespace xce

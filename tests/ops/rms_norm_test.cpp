#include <gtest/gtest.h>

#include <cmath>

#include "src/ops/ops.h"
#include "tests/support/tape_rig.h"

namespace xce {
namespace {

using test::Leaf;
using test::TapeRig;

const Leaf kX{{4, 7}}, kWeight{{1, 7}, true};
constexpr double kEps = 0.01;

TEST(RmsNormOp, Forward) {
  TapeRig rig({kX, kWeight}, [](Tape&, const std::vector<Var>& in) { return rms_norm(in[0], in[1], kEps); });
  test::Values values = rig.random_values(DType::kF64);
  std::vector<double> want;
  for (int r = 0; r < 4; ++r) {
    double square = 0;
    for (int i = 0; i < 7; ++i) square += values[0][r * 7 + i] * values[0][r * 7 + i];
    for (int i = 0; i < 7; ++i) want.push_back(values[1][i] * values[0][r * 7 + i] / std::sqrt(square / 7 + kEps));
  }
  EXPECT_LE(test::relative_l2(rig.run(values, DType::kF64, test::cpu_exec(3)).y, want), 1e-14);
}

TEST(RmsNormOp, Gradients) {
  TapeRig rig({kX, kWeight}, [](Tape&, const std::vector<Var>& in) { return rms_norm(in[0], in[1], kEps); });
  rig.expect_gradients();
  rig.expect_dtypes_agree();
}

TEST(RmsNormOp, InputAndWeightUsedTwice) {
  TapeRig rig({kX, kWeight}, [](Tape&, const std::vector<Var>& in) {
    return add(rms_norm(rms_norm(in[0], in[1], kEps), in[1], kEps), rms_norm(in[0], in[1], 1.0));
  });
  rig.expect_gradients();
  rig.expect_dtypes_agree();
}

}  // namespace
}  // namespace xce

#include "kernels/rope.h"

#include <gtest/gtest.h>

#include <cmath>

#include "src/ops/ops.h"
#include "tests/support/tape_rig.h"

namespace xce {
namespace {

using test::Leaf;
using test::TapeRig;

constexpr int64_t kSeqLen = 3, kHeadDim = 4, kHeads = 3, kRotated = 2;
const Leaf kX{{2 * kSeqLen, kHeads* kHeadDim}};

// The table in both accumulation types, so that one graph serves every dtype.
struct Tables {
  Buffer f32, f64;
  Tables() {
    std::vector<double> table = rope_table(kSeqLen, kHeadDim, 100.0, {});
    f32 = Buffer(table.size() * sizeof(float));
    f64 = Buffer(table.size() * sizeof(double));
    for (size_t i = 0; i < table.size(); ++i) {
      f32.as<float>()[i] = static_cast<float>(table[i]);
      f64.as<double>()[i] = static_cast<float>(table[i]);
    }
  }
  RopeTable of(const Tape& tape) const { return {tape.dtype() == DType::kF64 ? &f64 : &f32, kSeqLen, kHeadDim}; }
};

TEST(RopeOp, RotatesTheFirstHeadsByPosition) {
  Tables tables;
  TapeRig rig({kX}, [&](Tape& tape, const std::vector<Var>& in) { return rope(in[0], kRotated, tables.of(tape)); });
  test::Values values = rig.random_values(DType::kF64);
  std::vector<double> want = values[0];
  for (int64_t row = 0; row < 2 * kSeqLen; ++row)
    for (int64_t head = 0; head < kRotated; ++head)
      for (int64_t i = 0; i < kHeadDim / 2; ++i) {
        double angle = static_cast<double>(row % kSeqLen) * std::pow(100.0, -2.0 * static_cast<double>(i) / kHeadDim);
        double* x = &want[static_cast<size_t>(row * kHeads * kHeadDim + head * kHeadDim + i)];
        double a = x[0], b = x[kHeadDim / 2];
        x[0] = a * std::cos(angle) - b * std::sin(angle);
        x[kHeadDim / 2] = b * std::cos(angle) + a * std::sin(angle);
      }
  EXPECT_LE(test::relative_l2(rig.run(values, DType::kF64, test::cpu_exec(3)).y, want), 1e-7);
}

TEST(RopeOp, Gradients) {
  Tables tables;
  TapeRig rig({kX}, [&](Tape& tape, const std::vector<Var>& in) { return rope(in[0], kRotated, tables.of(tape)); });
  rig.expect_gradients();
  rig.expect_dtypes_agree();
}

// The gradient it turns in place is shared with another value's: it has to turn a copy.
TEST(RopeOp, LeavesASharedGradientAlone) {
  Tables tables;
  TapeRig rig({kX, kX}, [&](Tape& tape, const std::vector<Var>& in) {
    return add(rope(in[0], kRotated, tables.of(tape)), in[1]);
  });
  rig.expect_gradients();
}

TEST(RopeOp, ResultUsedTwiceAndInputUsedEarlier) {
  Tables tables;
  Leaf weight{{kHeads * kHeadDim, kHeads * kHeadDim}, true, 0.3};
  TapeRig rig({kX, weight}, [&](Tape& tape, const std::vector<Var>& in) {
    Var x = linear(in[0], in[1]);
    Var y = rope(x, kRotated, tables.of(tape));
    return add(linear(y, in[1]), add(y, in[0]));
  });
  rig.expect_gradients();
}

}  // namespace
}  // namespace xce

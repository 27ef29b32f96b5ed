#include <gtest/gtest.h>

#include <cmath>

#include "kernels/base/check.h"
#include "src/ops/ops.h"
#include "tests/support/tape_rig.h"

namespace xce {
namespace {

using test::Leaf;
using test::TapeRig;

constexpr Heads kHeads{4, 2, 2, 5};  // two sequences of five
const Leaf kQkv{{10, (4 + 2 * 2) * 2}};

// From the definition, one score at a time.
std::vector<double> reference(const std::vector<double>& qkv) {
  const int width = 16, dim = 2;
  std::vector<double> y(10 * 8, 0.0);
  for (int row = 0; row < 10; ++row)
    for (int head = 0; head < 4; ++head) {
      const int first = row / 5 * 5, kv = head / 2;
      std::vector<double> weight;
      double sum = 0;
      for (int key = first; key <= row; ++key) {
        double score = 0;
        for (int i = 0; i < dim; ++i) score += qkv[row * width + head * dim + i] * qkv[key * width + 8 + kv * dim + i];
        weight.push_back(std::exp(score / std::sqrt(2.0)));
        sum += weight.back();
      }
      for (int key = first; key <= row; ++key)
        for (int i = 0; i < dim; ++i)
          y[row * 8 + head * dim + i] += weight[key - first] / sum * qkv[key * width + 12 + kv * dim + i];
    }
  return y;
}

TEST(AttentionOp, SplitsFusedRowsIntoHeads) {
  TapeRig rig({kQkv}, [](Tape&, const std::vector<Var>& in) { return attention(in[0], kHeads); });
  test::Values values = rig.random_values(DType::kF64);
  EXPECT_LE(test::relative_l2(rig.run(values, DType::kF64, test::cpu_exec(3)).y, reference(values[0])), 1e-13);
}

TEST(AttentionOp, Gradients) {
  TapeRig rig({kQkv}, [](Tape&, const std::vector<Var>& in) { return attention(in[0], kHeads); });
  rig.expect_gradients();
  rig.expect_dtypes_agree();
}

// The other user's step is played after attention's, so it is the one that adds.
TEST(AttentionOp, InputWithAnEarlierUser) {
  TapeRig rig({kQkv, {{8, 16}, true, 0.3}}, [](Tape&, const std::vector<Var>& in) {
    Var other = linear(in[0], in[1]);
    Var y = attention(in[0], kHeads);
    return add(add(other, y), y);
  });
  rig.expect_gradients();
}

// Its kernel can only overwrite: a gradient that is already there is refused, not lost.
TEST(AttentionOp, RefusesAnInputWhoseGradientIsAlreadyWritten) {
  TapeRig rig({kQkv}, [](Tape&, const std::vector<Var>& in) {
    return add(attention(in[0], kHeads), attention(in[0], kHeads));
  });
  EXPECT_THROW(rig.run(rig.random_values(DType::kF64), DType::kF64, test::cpu_exec(1)), Error);
}

}  // namespace
}  // namespace xce

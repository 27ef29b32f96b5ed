#include <gtest/gtest.h>

#include "src/ops/ops.h"
#include "tests/support/tape_rig.h"

namespace xce {
namespace {

using test::Leaf;
using test::TapeRig;

const Leaf kWeight{{5, 4}, true};
const int32_t kTokens[] = {3, 0, 3, 4, 3, 1};  // 3 repeats, 2 does not occur

Var lookup(const Var& weight) {
  return embedding(weight, {kTokens, 6});
}

TEST(EmbeddingOp, LooksRowsUp) {
  TapeRig rig({kWeight}, [](Tape&, const std::vector<Var>& in) { return lookup(in[0]); });
  test::Values values = rig.random_values(DType::kF64);
  test::RigResult r = rig.run(values, DType::kF64, test::cpu_exec(3));
  ASSERT_EQ(r.y.size(), 24u);
  for (size_t i = 0; i < 24; ++i) EXPECT_EQ(r.y[i], values[0][static_cast<size_t>(kTokens[i / 4]) * 4 + i % 4]);
  for (size_t i = 8; i < 12; ++i) EXPECT_EQ(r.gradients[0][i], 0) << "the row of the token that does not occur";
}

TEST(EmbeddingOp, Gradients) {
  TapeRig rig({kWeight}, [](Tape&, const std::vector<Var>& in) { return lookup(in[0]); });
  rig.expect_gradients();
  rig.expect_dtypes_agree();
}

TEST(EmbeddingOp, WeightUsedTwiceAndAsAHead) {
  TapeRig rig({kWeight},
              [](Tape&, const std::vector<Var>& in) { return linear(add(lookup(in[0]), lookup(in[0])), in[0]); });
  rig.expect_gradients();
  rig.expect_dtypes_agree();
}

}  // namespace
}  // namespace xce

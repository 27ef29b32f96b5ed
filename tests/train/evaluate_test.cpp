#include "src/train/evaluate.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "tests/support/tiny_step.h"

namespace xce {
namespace {

using test::Batch;
using test::TinyStep;

// 10 whole windows and a last one of 3 targets.
constexpr int64_t kTokens = 10 * test::kTinySeqLen + 4;

ValidationWindows windows() {
  return {uniform_source(31, kTokens, 5), test::kTinySeqLen};
}

// The mean loss over the given windows in one batch, times its targets.
EvalResult reference(const std::vector<int64_t>& chosen) {
  test::TinyModel tiny(DType::kF64, test::tiny_config(false), test::kTinySeqLen);
  Batch batch;
  batch.tokens.resize(chosen.size() * test::kTinySeqLen);
  batch.targets.resize(batch.tokens.size());
  for (size_t i = 0; i < chosen.size(); ++i)
    windows().fill(chosen[i], 1, batch.tokens.data() + i * test::kTinySeqLen,
                   batch.targets.data() + i * test::kTinySeqLen);
  EvalResult result;
  for (int32_t t : batch.targets) result.targets += t >= 0;
  result.loss_sum = tiny.loss(batch, test::cpu_exec(1), {.backward = false}) * static_cast<double>(result.targets);
  return result;
}

TEST(Evaluate, CountsEveryTargetOnceForAnyMicroBatch) {
  const EvalResult want = reference({0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10});
  EXPECT_EQ(want.targets, kTokens - 1);
  for (int64_t micro_batch : {1, 2, 3, 4, 16}) {
    TinyStep s(DType::kF64, test::tiny_settings(micro_batch));
    EvalResult got = evaluate(s.step, windows(), 0);
    EXPECT_EQ(got.targets, want.targets) << micro_batch;
    EXPECT_NEAR(got.loss_sum, want.loss_sum, 1e-12 * want.loss_sum) << micro_batch;
  }
}

TEST(Evaluate, SpreadsFewerWindowsOverTheWholeSet) {
  const std::vector<std::vector<int64_t>> spread = {{0}, {0, 2, 5, 8}, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9}};
  for (const std::vector<int64_t>& chosen : spread) {
    const EvalResult want = reference(chosen);
    TinyStep s(DType::kF64, test::tiny_settings(3));
    EvalResult got = evaluate(s.step, windows(), static_cast<int64_t>(chosen.size()));
    EXPECT_EQ(got.targets, want.targets);
    EXPECT_NEAR(got.loss_sum, want.loss_sum, 1e-12 * want.loss_sum);
  }
  TinyStep s(DType::kF64, test::tiny_settings(3));
  EXPECT_EQ(evaluate(s.step, windows(), 1000).targets, kTokens - 1) << "more than there are";
}

}  // namespace
}  // namespace xce

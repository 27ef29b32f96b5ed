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

// The mean loss over the first `count` windows in one batch, times its targets.
EvalResult reference(int64_t count) {
  test::TinyModel tiny(DType::kF64, test::tiny_config(false), test::kTinySeqLen);
  Batch batch;
  batch.tokens.resize(static_cast<size_t>(count * test::kTinySeqLen));
  batch.targets.resize(batch.tokens.size());
  windows().fill(0, count, batch.tokens.data(), batch.targets.data());
  EvalResult result;
  for (int32_t t : batch.targets) result.targets += t >= 0;
  result.loss_sum = tiny.loss(batch, test::cpu_exec(1), {.backward = false}) * static_cast<double>(result.targets);
  return result;
}

TEST(Evaluate, CountsEveryTargetOnceForAnyMicroBatch) {
  const EvalResult want = reference(11);
  EXPECT_EQ(want.targets, kTokens - 1);
  for (int64_t micro_batch : {1, 2, 3, 4, 16}) {
    TinyStep s(DType::kF64, test::tiny_settings(micro_batch));
    EvalResult got = evaluate(s.step, windows(), 0);
    EXPECT_EQ(got.targets, want.targets) << micro_batch;
    EXPECT_NEAR(got.loss_sum, want.loss_sum, 1e-12 * want.loss_sum) << micro_batch;
  }
}

TEST(Evaluate, StopsAfterTheGivenWindows) {
  for (int64_t count : {1, 4, 10}) {
    const EvalResult want = reference(count);
    TinyStep s(DType::kF64, test::tiny_settings(3));
    EvalResult got = evaluate(s.step, windows(), count);
    EXPECT_EQ(got.targets, count * test::kTinySeqLen);
    EXPECT_NEAR(got.loss_sum, want.loss_sum, 1e-12 * want.loss_sum);
  }
  TinyStep s(DType::kF64, test::tiny_settings(3));
  EXPECT_EQ(evaluate(s.step, windows(), 1000).targets, kTokens - 1) << "more than there are";
}

}  // namespace
}  // namespace xce

#include "src/train/run_setup.h"

#include <gtest/gtest.h>

#include "tests/support/errors.h"
#include "tests/support/temp_dir.h"

namespace xce {
namespace {

std::string text(const std::string& more = "") {
  return "run: {dir: /nowhere, threads: 1}\n"
         "model: {hidden_size: 16, intermediate_size: 24, num_hidden_layers: 2, num_attention_heads: 2}\n"
         "data: {kind: markov, markov_states: 8, generated_tokens: 5000, val_fraction: 0.1}\n"
         "train: {steps: 3, seq_len: 8, micro_batch: 4, global_batch: 8}\n" +
         more;
}
Config config(const std::vector<std::string>& words = {}) {
  return parse_config(text(), "test.yaml", words);
}

TEST(RunSetup, PlansMemoryBeforeAllocatingAndUsesExactlyThat) {
  for (const char* precision : {"fp32", "bf16", "fp64"})
    for (const char* recompute : {"none", "block"}) {
      RunSetup setup(config({str("train.precision=", precision), str("train.recompute=", recompute)}));
      EXPECT_FALSE(setup.parameters().allocated());
      MemoryPlan plan = setup.memory_plan();
      setup.allocate();
      setup.prepare();
      EXPECT_EQ(plan.arena, setup.step().arena_capacity_bytes());
      EXPECT_EQ(plan.arena, setup.memory_plan().arena);
      std::vector<int32_t> tokens(64, 1), targets(64, 2);
      setup.step().run(tokens.data(), targets.data());
      EXPECT_EQ(plan.arena, setup.step().arena_peak_bytes()) << precision << " " << recompute;
      EXPECT_GT(plan.parameters, static_cast<size_t>(setup.parameters().count()) * 16);
    }
}

TEST(RunSetup, RecomputingNeedsLessMemory) {
  RunSetup kept(config({"model.num_hidden_layers=6"}));
  RunSetup again(config({"model.num_hidden_layers=6", "train.recompute=block"}));
  EXPECT_LT(again.memory_plan().arena, kept.memory_plan().arena);
}

TEST(RunSetup, PadsAGlobalBatchThatMicroBatchesDoNotDivide) {
  RunSetup setup(config({"train.global_batch=6"}));
  BatchPlan plan = setup.batch_plan();
  EXPECT_EQ(plan.global_batch, 6);
  EXPECT_EQ(plan.samples, 6);
  EXPECT_EQ(plan.rows, 8);
  EXPECT_EQ(setup.step().settings().micro_batches, 2);
  EXPECT_EQ(setup.tokens_per_step(), 48);
}

TEST(RunSetup, PlansForAnyWorld) {
  RunSetup one(config()), three(config(), PlanOnly{3}), many(config(), PlanOnly{100});
  EXPECT_EQ(one.communicated_bytes(), 0);
  EXPECT_NEAR(three.communicated_bytes(), 4.0 / 3 * 4 * static_cast<double>(three.parameters().size()), 1e-6);
  EXPECT_EQ(three.batch_plan().samples, 3);  // of 8
  EXPECT_EQ(three.batch_plan().rows, 4);
  EXPECT_EQ(many.batch_plan().rows, 4);
  EXPECT_LE(three.memory_plan().total(), one.memory_plan().total());
  EXPECT_NE(three.describe().find("ranks       3"), std::string::npos);
}

TEST(RunSetup, DescribesTheRun) {
  RunSetup setup(config());
  std::string out = setup.describe();
  for (const char* word :
       {"2 layers", "hidden 16", "vocabulary 8", "fp32", "Markov", "floor", "FLOPs", "MiB", "seed 0"})
    EXPECT_NE(out.find(word), std::string::npos) << word << " in\n" << out;
}

TEST(RunSetup, TakesTheVocabularyFromTheData) {
  EXPECT_EQ(RunSetup(config()).config().model.vocab_size, 8);
  EXPECT_TRUE(test::throws_error(ErrorCode::kUsage, {"model.vocab_size", "7", "8"},
                                 [] { RunSetup setup(config({"model.vocab_size=7"})); }));
}

TEST(RunSetup, RefusesAMissingDirectoryToStartFrom) {
  EXPECT_TRUE(test::throws_error(ErrorCode::kUsage, {"no-such-model"},
                                 [] { RunSetup setup(config({"model.init_from=/no-such-model"})); }));
}

TEST(RunSetup, InitialisesByTheSeed) {
  auto first_weight = [](const char* seed) {
    RunSetup setup(config({seed}));
    setup.allocate();
    return *static_cast<float*>(setup.parameters().master());
  };
  EXPECT_EQ(first_weight("run.seed=5"), first_weight("run.seed=5"));
  EXPECT_NE(first_weight("run.seed=5"), first_weight("run.seed=6"));
}

}  // namespace
}  // namespace xce

#include "src/train/trainer.h"

#include <gtest/gtest.h>

#include "src/train/metrics.h"
#include "tests/support/errors.h"
#include "tests/support/temp_dir.h"

// Exit statuses, kill -9 and signals are tested on the program itself: tests/cli/train_cli_test.py.
namespace xce {
namespace {

Config config(const std::filesystem::path& directory, const std::vector<std::string>& words = {}) {
  std::vector<std::string> all{"run.dir=" + directory.string()};
  all.insert(all.end(), words.begin(), words.end());
  return parse_config(
      "run: {dir: x, threads: 1}\n"
      "model: {hidden_size: 16, intermediate_size: 24, num_hidden_layers: 1, num_attention_heads: 2}\n"
      "data: {kind: markov, markov_states: 8, generated_tokens: 5000, val_fraction: 0.1}\n"
      "train: {steps: 6, seq_len: 8, micro_batch: 4, global_batch: 8}\n"
      "loss: {workspace_mib: 1}\n",
      "test.yaml", all);
}

TEST(Trainer, LeavesWhatItsHeaderSays) {
  test::TempDir dir;
  EXPECT_EQ(train(config(dir / "run", {"checkpoint.every=2", "checkpoint.keep=2", "eval.every=3"})), StopReason::kDone);
  for (const char* name : {"config.resolved.yaml", "metrics.jsonl", "checkpoints/step-6", "checkpoints/step-4",
                           "export/config.json", "export/model.safetensors"})
    EXPECT_TRUE(std::filesystem::exists(dir / "run" / name)) << name;
  EXPECT_FALSE(std::filesystem::exists(dir / "run" / "checkpoints" / "step-2"));
  std::vector<StepRecord> records = read_metrics(dir / "run" / "metrics.jsonl");
  ASSERT_EQ(records.size(), 6u);
  for (size_t i = 0; i < 6; ++i) {
    EXPECT_EQ(records[i].step, static_cast<int64_t>(i) + 1);
    EXPECT_EQ(records[i].tokens, static_cast<int64_t>(i + 1) * 64);
    EXPECT_EQ(records[i].val_loss.has_value(), i == 2 || i == 5);
  }
  EXPECT_NO_THROW(load_config((dir / "run" / "config.resolved.yaml").string()));
}

TEST(Trainer, GoesOnFromACheckpointBitForBit) {
  test::TempDir dir;
  train(config(dir / "straight"));
  train(config(dir / "parts", {"train.max_minutes=1e-9"}));
  train(config(dir / "parts"));
  std::vector<StepRecord> want = read_metrics(dir / "straight" / "metrics.jsonl");
  std::vector<StepRecord> got = read_metrics(dir / "parts" / "metrics.jsonl");
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_EQ(got[i].loss, want[i].loss);
    EXPECT_EQ(got[i].grad_norm, want[i].grad_norm);
    EXPECT_EQ(got[i].lr, want[i].lr);
  }
  EXPECT_EQ(test::read_file(dir / "parts" / "export" / "model.safetensors"),
            test::read_file(dir / "straight" / "export" / "model.safetensors"));
}

TEST(Trainer, StopsAtItsTimeLimitWithAnExport) {
  test::TempDir dir;
  EXPECT_EQ(train(config(dir / "run", {"train.max_minutes=1e-9"})), StopReason::kTimeLimit);
  EXPECT_TRUE(std::filesystem::exists(dir / "run" / "checkpoints" / "step-1"));
  EXPECT_TRUE(std::filesystem::exists(dir / "run" / "export" / "model.safetensors"));
}

TEST(Trainer, RefusesToResumeWithOtherSettings) {
  test::TempDir dir;
  train(config(dir / "run"));
  EXPECT_TRUE(test::throws_error(ErrorCode::kUsage, {"model.hidden_size", "16 -> 32"},
                                 [&] { train(config(dir / "run", {"model.hidden_size=32"})); }));
  EXPECT_TRUE(test::throws_error(ErrorCode::kUsage, {"run.resume", "never"},
                                 [&] { train(config(dir / "run", {"run.resume=never"})); }));
}

TEST(Trainer, ExportsAgainWhenNothingIsLeftToTrain) {
  test::TempDir dir;
  train(config(dir / "run"));
  std::string want = test::read_file(dir / "run" / "export" / "model.safetensors");
  std::filesystem::remove(dir / "run" / "export" / "config.json");
  test::write_file(dir / "run" / "export" / "model.safetensors", "of an earlier stop");
  test::write_file(dir / "run" / "export" / ".model.safetensors.tmp-1-2", "torn");
  EXPECT_EQ(train(config(dir / "run")), StopReason::kDone);
  EXPECT_EQ(test::read_file(dir / "run" / "export" / "model.safetensors"), want);
  EXPECT_EQ(test::count_entries(dir / "run" / "export"), 2u);
}

TEST(Trainer, KeysBesideInitFromMustAgreeWithIt) {
  test::TempDir dir;
  train(config(dir / "first"));
  std::string from = "model.init_from=" + (dir / "first" / "export").string();
  EXPECT_TRUE(test::throws_error(ErrorCode::kUsage, {"model.num_hidden_layers", "3", "1"}, [&] {
    train(config(dir / "second", {from, "model.num_hidden_layers=3"}));
  }));
  EXPECT_FALSE(std::filesystem::exists(dir / "second"));
  EXPECT_EQ(train(config(dir / "second", {from})), StopReason::kDone);
  // Resuming takes the weights from the checkpoint alone.
  std::filesystem::remove(dir / "first" / "export" / "model.safetensors");
  test::write_file(dir / "first" / "export" / "model.safetensors", std::string("\x02\0\0\0\0\0\0\0{}", 10));
  EXPECT_EQ(train(config(dir / "second", {from, "train.steps=8"})), StopReason::kDone);
}

TEST(Trainer, RefusalsLeaveNoTrace) {
  test::TempDir dir;
  test::write_file(dir / "short.txt", "x");
  test::write_file(dir / "text.txt", std::string(1000, 'a'));
  std::vector<std::string> words = {"data.kind=bytes", "data.markov_states=64", "data.val_fraction=0",
                                    "data.train=" + (dir / "text.txt").string(),
                                    "data.val=" + (dir / "short.txt").string()};
  EXPECT_TRUE(test::throws_error(ErrorCode::kUsage, {}, [&] { train(config(dir / "run", words)); }));
  EXPECT_FALSE(std::filesystem::exists(dir / "run"));
}

TEST(Trainer, NeverResumingRefusesAUsedDirectory) {
  test::TempDir dir;
  train(config(dir / "run"));
  std::filesystem::remove_all(dir / "run" / "checkpoints");
  std::string before = test::read_file(dir / "run" / "metrics.jsonl");
  EXPECT_TRUE(test::throws_error(ErrorCode::kUsage, {"run.resume", "metrics"},
                                 [&] { train(config(dir / "run", {"run.resume=never"})); }));
  EXPECT_EQ(test::read_file(dir / "run" / "metrics.jsonl"), before);
}

TEST(Trainer, WeightsThatNeverGotAFiniteStepAreNotExported) {
  test::TempDir dir;
  std::vector<std::string> words = {"model.initializer_range=1e300", "data.val_fraction=0"};
  EXPECT_TRUE(test::throws_error(ErrorCode::kNonFinite, {"export"}, [&] { train(config(dir / "run", words)); }));
  EXPECT_FALSE(std::filesystem::exists(dir / "run" / "export"));
}

}  // namespace
}  // namespace xce

// The trainer's loop ahead of a device whose steps land late: what it leaves does not depend on how far ahead it ran.
#include <gtest/gtest.h>

#include <csignal>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "src/train/metrics.h"
#include "src/train/trainer.h"
#include "tests/support/late_device.h"
#include "tests/support/temp_dir.h"

namespace xce {
namespace {

using Words = std::vector<std::string>;
constexpr int kSteps = 9;

Config config(const std::filesystem::path& directory, const Words& words) {
  Words all{"run.dir=" + directory.string()};
  all.insert(all.end(), words.begin(), words.end());
  return parse_config(
      "run: {dir: x, threads: 1}\n"
      "model: {hidden_size: 16, intermediate_size: 24, num_hidden_layers: 1, num_attention_heads: 2}\n"
      "data: {kind: markov, markov_states: 8, generated_tokens: 5000, val_fraction: 0.1}\n"
      "train: {steps: 9, seq_len: 8, micro_batch: 4, global_batch: 8}\n"
      "checkpoint: {keep: 100}\n"
      "loss: {workspace_mib: 1}\n",
      "test.yaml", all);
}

struct Left {
  std::vector<int64_t> steps;
  std::vector<double> losses, validations;
  std::set<std::string> checkpoints;
  std::string weights;
  bool operator==(const Left&) const = default;
};
Left left_in(const std::filesystem::path& directory) {
  Left left;
  for (const StepRecord& record : read_metrics(directory / "metrics.jsonl")) {
    left.steps.push_back(record.step);
    left.losses.push_back(record.loss);
    left.validations.push_back(record.val_loss.value_or(-1));
  }
  for (const auto& entry : std::filesystem::directory_iterator(directory / "checkpoints"))
    left.checkpoints.insert(entry.path().filename().string());
  if (std::filesystem::exists(directory / "export" / "model.safetensors"))
    left.weights = test::read_file(directory / "export" / "model.safetensors");
  return left;
}

std::unique_ptr<Device> late(std::function<void(int)> on_download = {}) {
  return std::make_unique<test::LateDevice>(1, std::move(on_download));
}

TEST(TrainerLate, LeavesWhatARunInStepLeaves) {
  for (const Words& words : {Words{}, Words{"eval.every=1"}, Words{"eval.every=2", "checkpoint.every=3"},
                             Words{"eval.every=4", "checkpoint.every=1"}, Words{"checkpoint.every=4"}}) {
    test::TempDir dir;
    EXPECT_EQ(train(config(dir / "in step", words)), StopReason::kDone);
    EXPECT_EQ(train(config(dir / "ahead", words), late()), StopReason::kDone);
    EXPECT_EQ(left_in(dir / "ahead"), left_in(dir / "in step")) << words.size();
  }
}

// Wherever a signal comes, the steps handed over are trained, recorded and saved, and the run goes on to the same end.
TEST(TrainerLate, ASignalAtAnyStepStopsAtTheLastStepUnderWay) {
  for (const Words& words : {Words{}, Words{"eval.every=3", "checkpoint.every=4"}}) {
    test::TempDir dir;
    train(config(dir / "straight", words));
    const Left want = left_in(dir / "straight");
    for (int at = 1; at <= kSteps; ++at) {
      auto raise_once = [at](int download) {
        if (download == at) std::raise(SIGUSR1);
      };
      const auto run = dir / std::to_string(at);
      StopReason reason = train(config(run, words), late(raise_once));
      Left left = left_in(run);
      const int64_t last = left.steps.back();
      EXPECT_GE(last, at);
      EXPECT_EQ(left.steps.size(), static_cast<size_t>(last)) << "a line for every step";
      EXPECT_TRUE(left.checkpoints.count("step-" + std::to_string(last)));
      EXPECT_EQ(reason == StopReason::kDone, last == kSteps) << at;
      EXPECT_EQ(left.weights.empty(), reason == StopReason::kSignal) << "an export at the end alone";
      if (reason == StopReason::kSignal) {
        EXPECT_EQ(train(config(run, words), late()), StopReason::kDone);
        left = left_in(run);
      }
      EXPECT_EQ(left.steps, want.steps);
      EXPECT_EQ(left.losses, want.losses);
      EXPECT_EQ(left.validations, want.validations) << at;
      EXPECT_EQ(left.weights, want.weights) << at;
    }
  }
}

TEST(TrainerLate, ATimeLimitStopsWithValidationAndExport) {
  test::TempDir dir;
  EXPECT_EQ(train(config(dir / "run", {"train.max_minutes=1e-9"}), late()), StopReason::kTimeLimit);
  Left left = left_in(dir / "run");
  EXPECT_LT(left.steps.back(), kSteps);
  EXPECT_GT(left.steps.back(), 1) << "ran ahead";
  EXPECT_GT(left.validations.back(), 0);
  EXPECT_FALSE(left.weights.empty());
  EXPECT_EQ(left.checkpoints, std::set<std::string>{"step-" + std::to_string(left.steps.back())});
  train(config(dir / "straight", {}));
  EXPECT_EQ(train(config(dir / "run", {}), late()), StopReason::kDone);
  EXPECT_EQ(left_in(dir / "run").weights, left_in(dir / "straight").weights);
}

}  // namespace
}  // namespace xce

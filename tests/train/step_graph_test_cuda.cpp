// A step on a GPU with its arrays in the GPU's own memory: captured in global mode, equal to launching kernel by kernel
// bit for bit, indifferent to a slow host, untouched by evaluations in between, and as large as planned.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <memory>
#include <thread>
#include <vector>

#include "src/train/step.h"
#include "tests/support/tiny_model.h"

namespace xce {
namespace {

using test::Batch;

ModelConfig small_config() {
  ModelConfig c;
  c.vocab_size = 8192;
  c.hidden_size = 512;
  c.intermediate_size = 1536;
  c.num_hidden_layers = 6;
  c.num_attention_heads = 8;
  c.num_key_value_heads = 4;
  c.head_dim = 64;
  c.tie_word_embeddings = true;
  return c;
}

StepSettings small_settings(int64_t micro_batches = 2) {
  StepSettings s;
  s.seq_len = 512;
  s.micro_batch = 4;
  s.micro_batches = micro_batches;
  s.loss_workspace_bytes = int64_t{64} << 20;
  s.schedule = {.kind = ScheduleKind::kCosine, .lr = 1e-3, .min_lr = 1e-4, .warmup = 3, .total = 20};
  s.max_norm = 1;
  s.weight_decay = 0.1;
  return s;
}

// Everything of a run but the program around it.
struct Rig {
  Device& device;
  ParameterSet parameters;
  Llama model;
  std::unique_ptr<Communicator> world = make_communicator();
  Step step;

  Rig(Device& where, DType dtype, const StepSettings& settings, const ModelConfig& config = small_config())
      : device(where),
        parameters(dtype),
        model(config, parameters),
        step((model.prepare(settings.seq_len, where.memory()), model), parameters, *world, where, settings) {
    parameters.allocate(where.memory());
    parameters.initialize(1, test::cpu_exec(2));
    parameters.update_compute(where.exec());
    step.prepare();
  }
  Batch batch(uint64_t seed) const {
    return test::random_batch(step.settings().rows(), model.config().vocab_size, seed);
  }
  StepState run(uint64_t seed) {
    Batch b = batch(seed);
    return step.run(b.tokens.data(), b.targets.data()).state;
  }
  std::vector<char> bytes(const void* data, size_t size) const {
    std::vector<char> out(size);
    device.memory().copy_out(out.data(), data, size);
    return out;
  }
  // All that a step changes for good.
  std::vector<std::vector<char>> weights() {
    const size_t n = static_cast<size_t>(parameters.size()), wide = size_of(accum_dtype(parameters.dtype()));
    return {bytes(parameters.master(), n * wide), bytes(parameters.first_moment(), n * wide),
            bytes(parameters.second_moment(), n * wide), bytes(parameters.compute(), n * size_of(parameters.dtype()))};
  }
};

class StepGraph : public ::testing::Test {
 protected:
  void SetUp() override {
    if (cuda_device_count() == 0) GTEST_SKIP() << "needs a GPU";
    device_ = make_cuda_device();
  }
  std::unique_ptr<Device> device_;
};

TEST_F(StepGraph, ReplayEqualsEagerLaunchesBitForBit) {
  for (DType dtype : {DType::kBf16, DType::kF32})
    for (bool recompute : {false, true}) {
      StepSettings settings = small_settings();
      settings.recompute_blocks = recompute;
      Rig graph(*device_, dtype, settings);
      settings.graph = false;
      Rig eager(*device_, dtype, settings);
      double first = 0;
      for (uint64_t i = 0; i < 20; ++i) {
        StepState a = graph.run(i), b = eager.run(i);
        EXPECT_EQ(a.loss, b.loss) << "step " << i;
        EXPECT_EQ(a.grad_norm, b.grad_norm);
        const double lr = learning_rate(settings.schedule, static_cast<int64_t>(i));
        EXPECT_NEAR(a.lr, lr, 1e-14) << "the GPU's cosine may differ in the last bit";
        EXPECT_EQ(a.lr, b.lr);
        if (i == 0) first = a.loss;
      }
      EXPECT_NE(first, graph.step.state().loss);
      EXPECT_EQ(graph.weights(), eager.weights()) << name_of(dtype) << " recompute " << recompute;
    }
}

TEST_F(StepGraph, RecomputedBlocksGiveTheSameBits) {
  StepSettings kept = small_settings(), again = small_settings();
  again.recompute_blocks = true;
  Rig a(*device_, DType::kBf16, kept), b(*device_, DType::kBf16, again);
  for (uint64_t i = 0; i < 5; ++i) EXPECT_EQ(a.run(i).loss, b.run(i).loss);
  EXPECT_EQ(a.weights(), b.weights());
  EXPECT_LT(b.step.arena_capacity_bytes(), a.step.arena_capacity_bytes());
}

TEST_F(StepGraph, EvaluationsInBetweenChangeNothing) {
  Rig disturbed(*device_, DType::kBf16, small_settings()), straight(*device_, DType::kBf16, small_settings());
  double first = 0, last = 0;
  for (uint64_t i = 0; i < 6; ++i) {
    Batch other = test::random_batch(disturbed.step.settings().micro_rows(), 8192, 77);
    EvalResult result = disturbed.step.evaluate(other.tokens.data(), other.targets.data());
    (i == 0 ? first : last) = result.loss_sum;
    EXPECT_GT(result.targets, 0);
    EXPECT_EQ(disturbed.run(i).loss, straight.run(i).loss);
  }
  EXPECT_NE(first, last) << "evaluations see the weights as they are";
  EXPECT_EQ(disturbed.weights(), straight.weights());
}

TEST_F(StepGraph, ANaNSkipsTheUpdateAndTheRunGoesOn) {
  Rig s(*device_, DType::kBf16, small_settings()), straight(*device_, DType::kBf16, small_settings());
  for (Rig* each : {&s, &straight}) each->run(1);
  auto before = s.weights();
  const uint16_t nan = 0x7FC0;
  s.device.memory().copy_in(s.parameters.compute(s.parameters.list().back().offset), &nan, sizeof(nan));
  StepState skipped = s.run(2);
  EXPECT_FALSE(std::isfinite(skipped.loss));
  EXPECT_EQ(skipped.apply, 0);
  EXPECT_EQ(skipped.skipped, 1);
  s.parameters.update_compute(s.device.exec());
  EXPECT_EQ(s.weights(), before);
  for (Rig* each : {&s, &straight}) each->run(3);
  EXPECT_EQ(s.weights(), straight.weights()) << "as if the skipped step had not been";
  EXPECT_EQ(s.step.state().updates, 2);
  EXPECT_EQ(s.step.state().step, 3);
}

TEST_F(StepGraph, StepsUnderWayLandInOrder) {
  Rig ahead(*device_, DType::kBf16, small_settings()), straight(*device_, DType::kBf16, small_settings());
  std::vector<double> got, want;
  for (uint64_t i = 0; i < 12; ++i) {
    Batch b = ahead.batch(i);
    ahead.step.submit(b.tokens.data(), b.targets.data());
    std::fill(b.tokens.begin(), b.tokens.end(), 0);  // the caller's memory is free again
    if (i % 5 == 4)
      while (ahead.step.pending() > 0) got.push_back(ahead.step.take().state.loss);
  }
  while (ahead.step.pending() > 0) got.push_back(ahead.step.take().state.loss);
  for (uint64_t i = 0; i < 12; ++i) want.push_back(straight.run(i).loss);
  EXPECT_EQ(got, want);
  EXPECT_EQ(ahead.weights(), straight.weights());
}

// Mean milliseconds of a step when the host spends `host_ms` before it hands over each.
double step_ms(Rig& rig, double host_ms, int steps) {
  Batch b = rig.batch(1);
  double total = 0;
  int counted = 0;
  for (int i = 0; i < steps; ++i) {
    auto until = std::chrono::steady_clock::now() + std::chrono::duration<double, std::milli>(host_ms);
    while (std::chrono::steady_clock::now() < until) std::this_thread::yield();
    rig.step.submit(b.tokens.data(), b.targets.data());
    while (rig.step.pending() >= Step::kSlots) {
      const double ms = rig.step.take().time_ms;
      if (i > steps / 4) total += ms, ++counted;
    }
  }
  while (rig.step.pending() > 0) rig.step.take();
  return total / counted;
}

TEST_F(StepGraph, ASlowHostCostsNothing) {
  Rig rig(*device_, DType::kBf16, small_settings(4));
  step_ms(rig, 0, 60);  // warm
  std::vector<double> ratios;
  double free = 0, slow = 0;
  for (int round = 0; round < 3; ++round) {
    free = step_ms(rig, 0, 80);
    slow = step_ms(rig, 0.8 * free, 80);
    ratios.push_back(slow / free);
  }
  std::sort(ratios.begin(), ratios.end());
  std::printf("a step takes %.3f ms, %.3f ms with a host that spends 0.8 of it: ratio %.4f\n", free, slow, ratios[1]);
  EXPECT_LT(ratios[1], 1.02);
}

TEST_F(StepGraph, MemoryIsWhatWasPlanned) {
  ModelConfig config = small_config();  // large enough that the CUDA libraries' own memory is a small part
  config.hidden_size = 2048;
  config.intermediate_size = 8192;
  config.num_attention_heads = 32;
  config.num_key_value_heads = 8;
  config.num_hidden_layers = 8;
  config.vocab_size = 65536;
  StepSettings settings = small_settings(1);
  settings.seq_len = 2048;
  settings.loss_workspace_bytes = int64_t{1} << 30;
  device_.reset();
  device_ = make_cuda_device();
  Rig rig(*device_, DType::kBf16, settings, config);
  rig.run(1);
  const size_t planned = rig.parameters.bytes() + rig.step.plan_arena_bytes() + rig.step.fixed_bytes() +
                         static_cast<size_t>(settings.seq_len * config.head_dim) * 4 + device_->fixed_bytes();
  const double used = static_cast<double>(device_->used_bytes());
  std::printf("planned %.1f MiB, in use %.1f MiB\n", static_cast<double>(planned) / (1 << 20), used / (1 << 20));
  EXPECT_NEAR(used / static_cast<double>(planned), 1, 0.02);
}

}  // namespace
}  // namespace xce

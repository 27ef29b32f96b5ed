// The CPU and the GPU train the same model on the same data to the same losses.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <vector>

#include "src/data/loader.h"
#include "src/data/markov.h"
#include "src/train/step.h"
#include "tests/support/tiny_model.h"

namespace xce {
namespace {

constexpr int64_t kSeqLen = 64, kBatch = 8;
constexpr int kSteps = 50;

std::vector<double> losses(Device& device, DType dtype) {
  ModelConfig c;
  c.vocab_size = 64;
  c.hidden_size = 64;
  c.intermediate_size = 160;
  c.num_hidden_layers = 2;
  c.num_attention_heads = 4;
  c.num_key_value_heads = 2;
  c.head_dim = 16;
  c.tie_word_embeddings = true;
  StepSettings settings;
  settings.seq_len = kSeqLen;
  settings.micro_batch = kBatch / 2;
  settings.micro_batches = 2;
  settings.schedule = {.kind = ScheduleKind::kCosine, .lr = 2e-3, .min_lr = 2e-4, .warmup = 5, .total = kSteps};
  settings.max_norm = 1;
  settings.weight_decay = 0.1;
  ParameterSet parameters(dtype);
  Llama model(c, parameters);
  model.prepare(kSeqLen, device.memory());
  parameters.allocate(device.memory());
  parameters.initialize(3, test::cpu_exec(2));
  parameters.update_compute(device.exec());
  std::unique_ptr<Communicator> world = make_communicator();
  Step step(model, parameters, *world, device, settings);
  step.prepare();
  Loader loader(std::make_shared<MarkovSource>(MarkovSource::Options{.states = 64, .size = 100000, .table_seed = 7}),
                kSeqLen, 11);
  std::vector<int32_t> tokens(static_cast<size_t>(settings.rows())), targets(tokens.size());
  std::vector<double> result;
  for (int i = 0; i < kSteps; ++i) {
    loader.fill(i * kBatch, kBatch, tokens.data(), targets.data());
    result.push_back(step.run(tokens.data(), targets.data()).state.loss);
  }
  return result;
}

TEST(DeviceAgreement, LossesOfFiftySteps) {
  if (!test::gpu_device()) GTEST_SKIP() << "needs a GPU";
  for (auto [dtype, bar] : {std::pair{DType::kF32, 1e-5}, std::pair{DType::kBf16, 2e-3}}) {
    std::vector<double> cpu = losses(test::cpu_device(2), dtype), gpu = losses(*test::gpu_device(), dtype);
    double worst = 0;
    for (int i = 0; i < kSteps; ++i)
      worst = std::max(worst, std::abs(gpu[static_cast<size_t>(i)] / cpu[static_cast<size_t>(i)] - 1));
    std::printf("%s: loss %.6f to %.6f, largest relative difference %.2e\n", name_of(dtype), cpu.front(), cpu.back(),
                worst);
    EXPECT_LE(worst, bar) << name_of(dtype);
    EXPECT_LT(cpu.back(), 0.95 * cpu.front()) << "something was learnt";
  }
}

}  // namespace
}  // namespace xce

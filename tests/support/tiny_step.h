// A training step of the tiny Llama, ready to run.
#pragma once

#include <memory>
#include <vector>

#include "src/train/step.h"
#include "tests/support/tiny_model.h"

namespace xce::test {

inline constexpr int64_t kTinySeqLen = 7;

inline StepSettings tiny_settings(int64_t micro_batch = 2, int64_t micro_batches = 1) {
  StepSettings s;
  s.seq_len = kTinySeqLen;
  s.micro_batch = micro_batch;
  s.micro_batches = micro_batches;
  s.loss_workspace_bytes = int64_t{1} << 20;
  s.schedule = {.kind = ScheduleKind::kCosine, .lr = 0.01, .min_lr = 0.001, .warmup = 2, .total = 50};
  s.max_norm = 1;
  s.weight_decay = 0.1;
  return s;
}

struct TinyStep {
  Device& device;
  TinyModel tiny;
  std::unique_ptr<Communicator> world = make_communicator();
  Step step;

  TinyStep(DType dtype, const StepSettings& settings, bool tied = false, uint64_t seed = 1,
           Device& where = cpu_device(2))
      : device(where),
        tiny(dtype, tiny_config(tied), kTinySeqLen, seed, where),
        step(tiny.model, tiny.parameters, *world, where, settings) {
    step.prepare();
  }

  StepResult run(const Batch& batch) { return step.run(batch.tokens.data(), batch.targets.data()); }
  void accumulate(const Batch& batch) { step.accumulate_gradients(batch.tokens.data(), batch.targets.data()); }
  Batch batch(uint64_t seed, int ignore_every = 5) const {
    return random_batch(step.settings().rows(), tiny.model.config().vocab_size, seed, ignore_every);
  }
  // Masters, both moments and the compute view: all that a step changes for good, bit for bit.
  std::vector<std::vector<double>> weights() {
    ParameterSet& p = tiny.parameters;
    return {tiny.masters(), TapeRig::read(p.first_moment(), tiny.accum(), p.size()),
            TapeRig::read(p.second_moment(), tiny.accum(), p.size()), TapeRig::read(p.compute(), p.dtype(), p.size())};
  }
};

}  // namespace xce::test

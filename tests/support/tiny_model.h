// A Llama small enough for difference quotients (grouped-query attention, every width different), its data, and one
// loss with its gradients on poisoned memory.
#pragma once

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "src/model/llama.h"
#include "tests/support/execs.h"
#include "tests/support/run_device.h"
#include "tests/support/tape_rig.h"

namespace xce::test {

inline ModelConfig tiny_config(bool tied, int64_t layers = 2) {
  ModelConfig c;
  c.vocab_size = 31;
  c.hidden_size = 12;
  c.intermediate_size = 20;
  c.num_hidden_layers = layers;
  c.num_attention_heads = 4;
  c.num_key_value_heads = 2;
  c.head_dim = 4;
  c.initializer_range = 0.3;
  c.tie_word_embeddings = tied;
  return c;
}

struct Batch {
  std::vector<int32_t> tokens, targets;
};
// Random tokens; every `ignore_every`-th target is ignored, none with 0.
inline Batch random_batch(int64_t rows, int64_t vocab, uint64_t seed, int ignore_every = 5) {
  std::mt19937_64 gen(seed);
  Batch batch;
  for (int64_t i = 0; i < rows; ++i) {
    batch.tokens.push_back(static_cast<int32_t>(gen() % static_cast<uint64_t>(vocab)));
    bool ignored = ignore_every > 0 && i % ignore_every == 2;
    batch.targets.push_back(ignored ? -100 : static_cast<int32_t>(gen() % static_cast<uint64_t>(vocab)));
  }
  return batch;
}

struct LossRunOptions {
  bool recompute = false;
  bool poison = false;   // free memory is NaN around every unit
  bool backward = true;  // false: the forward-only loss
  LossTerms terms = {};
};

struct TinyModel {
  ParameterSet parameters;
  Llama model;
  int64_t seq_len;

  TinyModel(DType dtype, const ModelConfig& config, int64_t seq_len_, uint64_t seed = 1, Device& device = cpu_device(1))
      : parameters(dtype), model(config, parameters), seq_len(seq_len_) {
    parameters.allocate(device.memory());
    parameters.initialize(seed, cpu_exec(1));
    randomize_norms();
    parameters.update_compute(cpu_exec(1));
    model.prepare(seq_len, device.memory());
  }
  TinyModel(const TinyModel&) = delete;

  DType accum() const { return accum_dtype(parameters.dtype()); }
  std::vector<double> masters() { return TapeRig::read(parameters.master(), accum(), parameters.size()); }
  std::vector<double> gradients() { return TapeRig::read(parameters.grad(), accum(), parameters.size()); }
  void set_master(int64_t element, double value) {
    TapeRig::write(parameters.master(element), accum(), {value}, false);
    parameters.update_compute(cpu_exec(1));
  }

  // The batch's mean loss; its gradients are in parameters.grad() unless options.backward is false.
  double loss(const Batch& batch, const Exec& exec, const LossRunOptions& options = {}, size_t* peak_bytes = nullptr) {
    Arena plan;
    double total = 0, denominator = 0;
    for (int32_t t : batch.targets) denominator += t >= 0;
    play(plan, batch, exec, options, &total, &denominator);
    Buffer memory(plan.peak_bytes());
    Arena arena(memory.data(), memory.size_bytes());
    arena.poison_free();
    parameters.begin_gradients();
    play(arena, batch, exec, options, &total, &denominator);
    if (options.backward) parameters.finish_gradients(exec);
    EXPECT_EQ(arena.peak_bytes(), plan.peak_bytes());
    EXPECT_EQ(arena.in_use_bytes(), 0u);
    if (peak_bytes) *peak_bytes = arena.peak_bytes();
    return total;
  }

  // Hidden states after the final norm, (tokens, hidden_size).
  std::vector<double> hidden(const std::vector<int32_t>& tokens, const Exec& exec) {
    Tokens ids{tokens.data(), static_cast<int64_t>(tokens.size())};
    auto forward = [&](Arena& arena) {
      Tape tape(exec, arena, parameters);
      tape.set_recording(false);
      Var h = model.hidden(tape, ids);
      return tape.planning() ? std::vector<double>() : TapeRig::read(h.data(), h.dtype(), h.shape().size());
    };
    Arena plan;
    forward(plan);
    Buffer memory(plan.peak_bytes());
    Arena arena(memory.data(), memory.size_bytes());
    arena.poison_free();
    return forward(arena);
  }

 private:
  // Ones would hide a norm's weight that is read from the wrong place.
  void randomize_norms() {
    for (const Parameter& p : parameters.list())
      if (p.init_stddev == 0)
        TapeRig::write(parameters.master(p.offset), accum(),
                       Array::normal(accum(), p.size(), static_cast<uint64_t>(p.offset), 0.2).values(), true);
  }
  void play(Arena& arena, const Batch& batch, const Exec& exec, const LossRunOptions& options, double* total,
            const double* denominator) {
    Tape tape(exec, arena, parameters);
    tape.set_recording(options.backward);
    if (options.poison) {
      auto poison = [&arena](int) { arena.poison_free(); };
      tape.hooks() = {poison, poison, poison, poison};
    }
    int64_t rows = static_cast<int64_t>(batch.tokens.size());
    LossIo io{.targets = {batch.targets.data(), rows},
              .denominator = denominator,
              .loss = total,
              .terms = options.terms,
              .workspace_bytes = int64_t{1} << 20};
    model.loss(tape, {batch.tokens.data(), rows}, io, options.recompute);
    tape.backward();
  }
};

}  // namespace xce::test

// One training step: count, forward and backward per micro-batch, norm, clip, AdamW. Everything that changes from step
// to step is read through device memory (tokens, denominator, StepState), so the same sequence of launches serves every
// step.
#pragma once

#include <cstdint>

#include "kernels/adamw.h"
#include "kernels/step_control.h"
#include "src/core/arena.h"
#include "src/core/buffer.h"
#include "src/dist/communicator.h"
#include "src/model/llama.h"

namespace xce {

struct StepSettings {
  int64_t seq_len = 0, micro_batch = 1, micro_batches = 1;  // this rank's
  bool recompute_blocks = false;
  double z_loss = 0;
  int64_t loss_workspace_bytes = int64_t{64} << 20;
  Schedule schedule;
  double max_norm = 0;
  double weight_decay = 0, beta1 = 0.9, beta2 = 0.95, eps = 1e-8;

  int64_t micro_rows() const { return micro_batch * seq_len; }
  int64_t rows() const { return micro_rows() * micro_batches; }
};

// Sum of the losses and number of targets of some forward-only rows.
struct EvalResult {
  double loss_sum = 0;
  int64_t targets = 0;
};

class Step {
 public:
  // Borrows all but the settings; model.prepare(seq_len) has been called.
  Step(const Llama& model, ParameterSet& parameters, Communicator& world, const Exec& exec,
       const StepSettings& settings);

  // Bytes of the arena a step and an evaluation need: exact, from a dry run; works before anything is allocated.
  size_t plan_arena_bytes() const;
  // Bytes of this object's own arrays: token slots, weight decay table, scalars.
  size_t fixed_bytes() const;
  // Allocates them. The parameters have been allocated.
  void prepare();

  // tokens and targets (rows(), as micro-batches one after another) in host memory; -100 is an ignored target.
  void run(const int32_t* tokens, const int32_t* targets);
  // The two halves of run: gradients of the whole global batch; then norm, control and update.
  void accumulate_gradients(const int32_t* tokens, const int32_t* targets);
  void update();

  // Forward only, (micro_rows()) tokens and targets; the plain cross-entropy, without the z-loss.
  EvalResult evaluate(const int32_t* tokens, const int32_t* targets);

  const StepState& state() const { return scalars().state; }
  void set_state(const StepState& state) { scalars().state = state; }
  size_t arena_capacity_bytes() const { return memory_.size_bytes(); }
  size_t arena_peak_bytes() const { return arena_.peak_bytes(); }
  const StepSettings& settings() const { return settings_; }

 private:
  struct Scalars {
    StepState state;
    double loss, denominator, norm2;
    int64_t n_valid;
  };
  Scalars& scalars() { return *scalars_.as<Scalars>(); }
  const Scalars& scalars() const { return *static_cast<const Scalars*>(scalars_.data()); }
  void load(const int32_t* tokens, const int32_t* targets, int64_t rows);
  void record(Tape& tape, int64_t first_row, double* loss, const double* denominator, double z_loss) const;
  void reduce_gradients();

  const Llama& model_;
  ParameterSet& parameters_;
  Communicator& world_;
  Exec exec_;
  StepSettings settings_;
  Buffer memory_, tokens_, targets_, decay_, scalars_;
  Arena arena_;
};

}  // namespace xce

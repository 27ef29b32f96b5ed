// One training step: count, forward and backward per micro-batch, norm, clip, AdamW. Everything that changes from step
// to step is read through device memory (tokens, denominator, StepState), so the same sequence of launches serves every
// step: a GPU captures it once into a graph and replays it. The host hands over tokens and picks up results of steps
// that have landed; it never waits for the step it just handed over.
//
// Invariants. 1. Step s lies in slot s mod kSlots, of tokens and of results. 2. A slot is filled again only when its
// last step has landed. 3. Nothing in the recorded work depends on a value that the host holds.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>

#include "kernels/adamw.h"
#include "kernels/step_control.h"
#include "src/core/arena.h"
#include "src/core/buffer.h"
#include "src/core/device.h"
#include "src/dist/communicator.h"
#include "src/model/llama.h"

namespace xce {

struct StepSettings {
  int64_t seq_len = 0, micro_batch = 1, micro_batches = 1;  // this rank's
  bool recompute_blocks = false;
  bool graph = true;  // false: a GPU launches every kernel anew in each step
  LossTerms terms = {};
  int64_t loss_workspace_bytes = int64_t{64} << 20;
  Schedule schedule;
  double max_norm = 0;
  double weight_decay = 0, beta1 = 0.9, beta2 = 0.95, eps = 1e-8;

  int64_t micro_rows() const { return micro_batch * seq_len; }
  int64_t rows() const { return micro_rows() * micro_batches; }
};

// What a step left, and its time: since the step before it, or since start_clock() after a pause.
struct StepResult {
  StepState state;
  double time_ms = 0;
};

// Sum of the losses and number of targets of some forward-only rows.
struct EvalResult {
  double loss_sum = 0;
  int64_t targets = 0;
};

class Step {
 public:
  static constexpr int64_t kSlots = 3;  // steps that may be under way

  // Borrows all but the settings; model.prepare(seq_len) has been called.
  Step(const Llama& model, ParameterSet& parameters, Communicator& world, Device& device, const StepSettings& settings);

  ~Step();  // waits for what is under way
  Step(const Step&) = delete;
  Step& operator=(const Step&) = delete;

  // Bytes of the arena a step and an evaluation need: exact, from a dry run; works before anything is allocated.
  size_t plan_arena_bytes() const;
  // Bytes of this object's own arrays: token slots, weight decay table, scalars.
  size_t fixed_bytes() const;
  // Allocates them; the parameters have been allocated and initialised. A GPU then computes a step and an evaluation of
  // made-up tokens, whose update is skipped, so that every kernel is loaded and every algorithm chosen, and captures
  // both: no other thread may use the GPU meanwhile.
  void prepare();

  // Enqueues a step on tokens and targets (rows(), as micro-batches one after another) in host memory, which is free
  // again when this returns; -100 is an ignored target. Waits only while kSlots steps are under way.
  void submit(const int32_t* tokens, const int32_t* targets);
  int64_t pending() const { return static_cast<int64_t>(flights_.size() + landed_.size()); }  // results not yet taken
  bool landed() const { return !landed_.empty() || (!flights_.empty() && flights_.front().end->reached()); }
  bool idle() const { return flights_.empty() || flights_.back().end->reached(); }  // all submitted steps are done
  StepResult take();  // the oldest pending result; waits for it
  // The next step's time begins now, if none is under way: for what the caller does before submit.
  void start_clock();
  // submit and take.
  StepResult run(const int32_t* tokens, const int32_t* targets);
  // The two halves of a step, launched as they are: gradients of the whole global batch; then norm, control and update.
  void accumulate_gradients(const int32_t* tokens, const int32_t* targets);
  void update();

  // Forward only, (micro_rows()) tokens and targets; the plain cross-entropy, without the z-loss. Waits.
  EvalResult evaluate(const int32_t* tokens, const int32_t* targets);

  StepState state() const;  // after all submitted steps; waits for them
  void set_state(const StepState& state);
  size_t arena_capacity_bytes() const { return memory_.size_bytes(); }
  size_t arena_peak_bytes() const { return arena_.peak_bytes(); }
  const StepSettings& settings() const { return settings_; }

 private:
  struct Scalars {
    StepState state;
    double loss, denominator, norm2, one, eval_loss;
    int64_t n_valid, eval_valid;
  };
  struct Flight {
    std::shared_ptr<Mark> begin, end;
    const StepState* result;
  };
  Scalars* scalars() const { return static_cast<Scalars*>(const_cast<void*>(scalars_.data())); }
  int64_t slot_size() const { return 2 * settings_.rows(); }  // tokens, then targets
  const int32_t* inputs(int64_t first) const;
  void load(const int32_t* tokens, const int32_t* targets);
  void record(Tape& tape, int64_t first_row, double* loss, const double* denominator, const LossTerms& terms) const;
  void enqueue_gradients(double initial_loss);
  void enqueue_update();
  void enqueue_evaluation();
  void warm_up();
  void reduce_gradients();
  void land_oldest();

  const Llama& model_;
  ParameterSet& parameters_;
  Communicator& world_;
  Device& device_;
  StepSettings settings_;
  Buffer memory_, slots_, inputs_, decay_, scalars_;
  Buffer staged_tokens_, staged_results_;  // one of each per slot
  Arena arena_;
  std::unique_ptr<Recording> step_recording_, eval_recording_;  // after what they work on: they go first
  int64_t next_step_ = 0;                                       // StepState::step once all submitted steps are done
  std::deque<Flight> flights_;
  std::deque<StepResult> landed_;
  std::shared_ptr<Mark> clock_;
};

}  // namespace xce

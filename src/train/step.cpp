#include "src/train/step.h"

#include <cstring>
#include <limits>

#include "kernels/cross_entropy/loss.h"
#include "kernels/norm2.h"
#include "kernels/take_slot.h"
#include "src/core/trace.h"

namespace xce {

Step::Step(const Llama& model, ParameterSet& parameters, Communicator& world, Device& device,
           const StepSettings& settings)
    : model_(model), parameters_(parameters), world_(world), device_(device), settings_(settings) {
  XCE_CHECK(settings.seq_len >= 1, "seq_len >= 1", settings.seq_len);
  XCE_CHECK(settings.micro_batch >= 1, "micro_batch >= 1", settings.micro_batch);
  XCE_CHECK(settings.micro_batches >= 1, "micro_batches >= 1", settings.micro_batches);
}

Step::~Step() {
  if (flights_.empty()) return;
  try {
    device_.synchronize();
  } catch (const Error&) {  // whoever asked for the steps' results was told
  }
}

const int32_t* Step::inputs(int64_t first) const {
  return inputs_.data() ? static_cast<const int32_t*>(inputs_.data()) + first : nullptr;
}

void Step::record(Tape& tape, int64_t first_row, double* loss, const double* denominator,
                  const LossTerms& terms) const {
  Tokens tokens{inputs(first_row), settings_.micro_rows()};
  LossIo io{.targets = {inputs(settings_.rows() + first_row), settings_.micro_rows()},
            .denominator = denominator,
            .loss = loss,
            .terms = terms,
            .workspace_bytes = settings_.loss_workspace_bytes};
  model_.loss(tape, tokens, io, settings_.recompute_blocks);
}

size_t Step::plan_arena_bytes() const {
  Arena plan;
  Tape tape(device_.exec(), plan, parameters_);
  record(tape, 0, nullptr, nullptr, settings_.terms);
  tape.backward();
  {
    Norm2 norm{};
    norm.n = parameters_.size();
    norm.dtype = accum_dtype(parameters_.dtype());
    tape.run_with_workspace(norm);
  }
  tape.set_recording(false);
  record(tape, 0, nullptr, nullptr, {});
  return plan.peak_bytes();
}

size_t Step::fixed_bytes() const {
  size_t blocks = static_cast<size_t>((parameters_.size() + AdamW::kBlock - 1) / AdamW::kBlock);
  return (kSlots + 1) * static_cast<size_t>(slot_size()) * sizeof(int32_t) + blocks * sizeof(float) + sizeof(Scalars);
}

void Step::prepare() {
  Memory& memory = device_.memory();
  const size_t slot_bytes = static_cast<size_t>(slot_size()) * sizeof(int32_t);
  memory_ = Buffer(plan_arena_bytes(), memory);
  arena_ = Arena(memory_.data(), memory_.size_bytes(), memory);
  slots_ = Buffer(kSlots * slot_bytes, memory);
  inputs_ = Buffer(slot_bytes, memory);
  staged_tokens_ = Buffer(kSlots * slot_bytes, device_.staging());
  staged_results_ = Buffer(kSlots * sizeof(StepState), device_.staging());
  scalars_ = Buffer(sizeof(Scalars), memory);
  Scalars initial{};
  initial.one = 1;
  memory.copy_in(scalars_.data(), &initial, sizeof(initial));
  std::vector<float> decay(static_cast<size_t>((parameters_.size() + AdamW::kBlock - 1) / AdamW::kBlock), 0.0f);
  for (const Parameter& p : parameters_.list())
    for (int64_t block = p.offset / AdamW::kBlock; block * AdamW::kBlock < p.offset + p.size(); ++block)
      decay[static_cast<size_t>(block)] = p.matrix() ? static_cast<float>(settings_.weight_decay) : 0.0f;
  decay_ = Buffer(decay.size() * sizeof(float), memory);
  memory.copy_in(decay_.data(), decay.data(), decay_.size_bytes());

  if (device_.asynchronous()) warm_up();
  auto step = [this] {
    enqueue_gradients(0);
    enqueue_update();
  };
  auto evaluation = [this] { enqueue_evaluation(); };
  step_recording_ = settings_.graph ? device_.record(step) : device_.record_eager(step);
  eval_recording_ = settings_.graph ? device_.record(evaluation) : device_.record_eager(evaluation);
}

// A loss that begins as NaN skips the update, so weights and moments stay as they are bit for bit.
void Step::warm_up() {
  const StepState before = state();
  std::vector<int32_t> tokens(static_cast<size_t>(settings_.rows()));
  for (size_t i = 0; i < tokens.size(); ++i)
    tokens[i] = static_cast<int32_t>(i * 2654435761u % static_cast<uint64_t>(model_.config().vocab_size));
  load(tokens.data(), tokens.data());
  enqueue_gradients(std::numeric_limits<double>::quiet_NaN());
  enqueue_update();
  enqueue_evaluation();
  device_.synchronize();
  set_state(before);
}

void Step::load(const int32_t* tokens, const int32_t* targets) {
  const size_t half = static_cast<size_t>(settings_.rows()), at = static_cast<size_t>(next_step_ % kSlots) * 2 * half;
  int32_t* staged = staged_tokens_.as<int32_t>() + at;
  std::memcpy(staged, tokens, half * sizeof(int32_t));
  std::memcpy(staged + half, targets, half * sizeof(int32_t));
  device_.upload(slots_.as<int32_t>() + at, staged, 2 * half * sizeof(int32_t));
}

void Step::start_clock() {
  if (flights_.empty()) clock_ = device_.mark();
}

void Step::submit(const int32_t* tokens, const int32_t* targets) {
  if (static_cast<int64_t>(flights_.size()) == kSlots) land_oldest();
  if (!clock_) clock_ = device_.mark();
  load(tokens, targets);
  step_recording_->replay();
  StepState* result = staged_results_.as<StepState>() + next_step_ % kSlots;
  std::shared_ptr<Mark> end = device_.download(result, &scalars()->state, sizeof(StepState));
  flights_.push_back({clock_, end, result});
  clock_ = end;
  ++next_step_;
}

void Step::land_oldest() {
  const Flight& flight = flights_.front();
  flight.end->wait();
  landed_.push_back({*flight.result, flight.end->ms_since(*flight.begin)});
  flights_.pop_front();
}

StepResult Step::take() {
  XCE_CHECK(pending() > 0, "a submitted step", "none");
  if (landed_.empty()) land_oldest();
  StepResult result = landed_.front();
  landed_.pop_front();
  if (flights_.empty()) clock_.reset();
  return result;
}

StepResult Step::run(const int32_t* tokens, const int32_t* targets) {
  XCE_CHECK(pending() == 0, "no step under way before run()", pending());
  submit(tokens, targets);
  return take();
}

void Step::accumulate_gradients(const int32_t* tokens, const int32_t* targets) {
  load(tokens, targets);
  enqueue_gradients(0);
  device_.synchronize();
}

void Step::update() {
  enqueue_update();
  ++next_step_;
  device_.synchronize();
}

void Step::enqueue_gradients(double initial_loss) {
  TraceRange range("gradients");
  Scalars* s = scalars();
  xce::run(device_.exec(), TakeSlot{.slots = slots_.as<int32_t>(),
                                    .state = &s->state,
                                    .out = inputs_.as<int32_t>(),
                                    .n = slot_size(),
                                    .count = kSlots});
  xce::run(device_.exec(), Fill{.y = &s->loss, .n = 1, .dtype = DType::kF64, .value = initial_loss});
  xce::run(device_.exec(), LossCount{.targets = {.index = inputs(settings_.rows())},
                                     .rows = settings_.rows(),
                                     .vocab_global = model_.config().vocab_size,
                                     .n_valid = &s->n_valid,
                                     .weight_sum = &s->denominator});
  world_.wait(device_.exec(), world_.all_reduce(device_.exec(), &s->denominator, 1, CommType::kF64, Reduce::kSum));

  parameters_.begin_gradients();
  for (int64_t m = 0; m < settings_.micro_batches; ++m) {
    TraceRange micro_batch("micro-batch");
    Tape tape(device_.exec(), arena_, parameters_);
    record(tape, m * settings_.micro_rows(), &s->loss, &s->denominator, settings_.terms);
    tape.backward();
  }
  parameters_.finish_gradients(device_.exec());
  reduce_gradients();
}

void Step::reduce_gradients() {
  const Exec& exec = device_.exec();
  world_.wait(exec, world_.all_reduce(exec, &scalars()->loss, 1, CommType::kF64, Reduce::kSum));
  CommType type = comm_type(accum_dtype(parameters_.dtype()));
  world_.wait(exec, world_.all_reduce(exec, parameters_.grad(), parameters_.size(), type, Reduce::kSum));
}

void Step::enqueue_update() {
  TraceRange range("update");
  Scalars* s = scalars();
  Tape tape(device_.exec(), arena_, parameters_);
  tape.run_with_workspace(Norm2{.x = parameters_.grad(),
                                .out = &s->norm2,
                                .workspace = nullptr,
                                .workspace_size_bytes = 0,
                                .n = parameters_.size(),
                                .dtype = accum_dtype(parameters_.dtype())});
  tape.run(StepControl{.loss = &s->loss,
                       .norm2 = &s->norm2,
                       .state = &s->state,
                       .schedule = settings_.schedule,
                       .max_norm = settings_.max_norm});
  tape.run(AdamW{.master = parameters_.master(),
                 .m = parameters_.first_moment(),
                 .v = parameters_.second_moment(),
                 .grad = parameters_.grad(),
                 .compute = parameters_.has_compute_copy() ? parameters_.compute() : nullptr,
                 .decay = decay_.as<float>(),
                 .state = &s->state,
                 .n = parameters_.size(),
                 .dtype = parameters_.dtype(),
                 .beta1 = settings_.beta1,
                 .beta2 = settings_.beta2,
                 .eps = settings_.eps});
}

void Step::enqueue_evaluation() {
  TraceRange range("evaluation");
  Scalars* s = scalars();
  Tape tape(device_.exec(), arena_, parameters_);
  tape.set_recording(false);
  tape.run(Fill{.y = &s->eval_loss, .n = 1, .dtype = DType::kF64, .value = 0});
  tape.run(LossCount{.targets = {.index = inputs(settings_.rows())},
                     .rows = settings_.micro_rows(),
                     .vocab_global = model_.config().vocab_size,
                     .n_valid = &s->eval_valid,
                     .weight_sum = nullptr});
  record(tape, 0, &s->eval_loss, &s->one, {});
}

EvalResult Step::evaluate(const int32_t* tokens, const int32_t* targets) {
  const size_t bytes = static_cast<size_t>(settings_.micro_rows()) * sizeof(int32_t);
  int32_t* at = inputs_.as<int32_t>();
  device_.memory().copy_in(at, tokens, bytes);
  device_.memory().copy_in(at + settings_.rows(), targets, bytes);
  eval_recording_->replay();
  Scalars s;
  device_.memory().copy_out(&s, scalars_.data(), sizeof(s));
  return {s.eval_loss, s.eval_valid};
}

StepState Step::state() const {
  StepState state;
  device_.memory().copy_out(&state, &scalars()->state, sizeof(state));
  return state;
}

void Step::set_state(const StepState& state) {
  XCE_CHECK(pending() == 0, "no step under way before set_state()", pending());
  device_.memory().copy_in(&scalars()->state, &state, sizeof(state));
  next_step_ = state.step;
}

}  // namespace xce

#include "src/train/step.h"

#include <cstring>

#include "kernels/cross_entropy/loss.h"
#include "kernels/norm2.h"

namespace xce {

Step::Step(const Llama& model, ParameterSet& parameters, Communicator& world, const Exec& exec,
           const StepSettings& settings)
    : model_(model), parameters_(parameters), world_(world), exec_(exec), settings_(settings) {
  XCE_CHECK(settings.seq_len >= 1, "seq_len >= 1", settings.seq_len);
  XCE_CHECK(settings.micro_batch >= 1, "micro_batch >= 1", settings.micro_batch);
  XCE_CHECK(settings.micro_batches >= 1, "micro_batches >= 1", settings.micro_batches);
}

void Step::record(Tape& tape, int64_t first_row, double* loss, const double* denominator, double z_loss) const {
  auto at = [&](const Buffer& buffer) {
    return buffer.data() ? static_cast<const int32_t*>(buffer.data()) + first_row : nullptr;
  };
  Tokens tokens{at(tokens_), settings_.micro_rows()};
  LossIo io{.targets = {at(targets_), settings_.micro_rows()},
            .denominator = denominator,
            .loss = loss,
            .z_loss = z_loss,
            .workspace_bytes = settings_.loss_workspace_bytes};
  model_.loss(tape, tokens, io, settings_.recompute_blocks);
}

size_t Step::plan_arena_bytes() const {
  Arena plan;
  Tape tape(exec_, plan, parameters_);
  record(tape, 0, nullptr, nullptr, settings_.z_loss);
  tape.backward();
  {
    Norm2 norm{};
    norm.n = parameters_.size();
    norm.dtype = accum_dtype(parameters_.dtype());
    tape.run_with_workspace(norm);
  }
  tape.set_recording(false);
  record(tape, 0, nullptr, nullptr, 0);
  return plan.peak_bytes();
}

size_t Step::fixed_bytes() const {
  size_t blocks = static_cast<size_t>((parameters_.size() + AdamW::kBlock - 1) / AdamW::kBlock);
  return 2 * static_cast<size_t>(settings_.rows()) * sizeof(int32_t) + blocks * sizeof(float) + sizeof(Scalars);
}

void Step::prepare() {
  memory_ = Buffer(plan_arena_bytes());
  arena_ = Arena(memory_.data(), memory_.size_bytes());
  tokens_ = Buffer(static_cast<size_t>(settings_.rows()) * sizeof(int32_t));
  targets_ = Buffer(static_cast<size_t>(settings_.rows()) * sizeof(int32_t));
  scalars_ = Buffer(sizeof(Scalars));
  new (scalars_.data()) Scalars{};
  decay_ = Buffer(static_cast<size_t>((parameters_.size() + AdamW::kBlock - 1) / AdamW::kBlock) * sizeof(float));
  for (const Parameter& p : parameters_.list())
    for (int64_t block = p.offset / AdamW::kBlock; block * AdamW::kBlock < p.offset + p.size(); ++block)
      decay_.as<float>()[block] = p.matrix() ? static_cast<float>(settings_.weight_decay) : 0.0f;
}

void Step::load(const int32_t* tokens, const int32_t* targets, int64_t rows) {
  std::memcpy(tokens_.data(), tokens, static_cast<size_t>(rows) * sizeof(int32_t));
  std::memcpy(targets_.data(), targets, static_cast<size_t>(rows) * sizeof(int32_t));
}

void Step::run(const int32_t* tokens, const int32_t* targets) {
  accumulate_gradients(tokens, targets);
  update();
}

void Step::accumulate_gradients(const int32_t* tokens, const int32_t* targets) {
  load(tokens, targets, settings_.rows());
  Scalars& s = scalars();
  xce::run(exec_, Fill{.y = &s.loss, .n = 1, .dtype = DType::kF64, .value = 0});
  xce::run(exec_, LossCount{.targets = {.index = targets_.data()},
                            .rows = settings_.rows(),
                            .vocab_global = model_.config().vocab_size,
                            .n_valid = &s.n_valid,
                            .weight_sum = &s.denominator});
  world_.wait(exec_, world_.all_reduce(exec_, &s.denominator, 1, CommType::kF64, Reduce::kSum));

  parameters_.begin_gradients();
  for (int64_t m = 0; m < settings_.micro_batches; ++m) {
    Tape tape(exec_, arena_, parameters_);
    record(tape, m * settings_.micro_rows(), &s.loss, &s.denominator, settings_.z_loss);
    tape.backward();
  }
  parameters_.finish_gradients(exec_);
  reduce_gradients();
}

void Step::reduce_gradients() {
  Scalars& s = scalars();
  world_.wait(exec_, world_.all_reduce(exec_, &s.loss, 1, CommType::kF64, Reduce::kSum));
  CommType type = comm_type(accum_dtype(parameters_.dtype()));
  world_.wait(exec_, world_.all_reduce(exec_, parameters_.grad(), parameters_.size(), type, Reduce::kSum));
}

void Step::update() {
  Scalars& s = scalars();
  Tape tape(exec_, arena_, parameters_);
  tape.run_with_workspace(Norm2{.x = parameters_.grad(),
                                .out = &s.norm2,
                                .workspace = nullptr,
                                .workspace_size_bytes = 0,
                                .n = parameters_.size(),
                                .dtype = accum_dtype(parameters_.dtype())});
  xce::run(exec_, StepControl{.loss = &s.loss,
                              .norm2 = &s.norm2,
                              .state = &s.state,
                              .schedule = settings_.schedule,
                              .max_norm = settings_.max_norm});
  xce::run(exec_, AdamW{.master = parameters_.master(),
                        .m = parameters_.first_moment(),
                        .v = parameters_.second_moment(),
                        .grad = parameters_.grad(),
                        .compute = parameters_.has_compute_copy() ? parameters_.compute() : nullptr,
                        .decay = decay_.as<float>(),
                        .state = &s.state,
                        .n = parameters_.size(),
                        .dtype = parameters_.dtype(),
                        .beta1 = settings_.beta1,
                        .beta2 = settings_.beta2,
                        .eps = settings_.eps});
}

EvalResult Step::evaluate(const int32_t* tokens, const int32_t* targets) {
  load(tokens, targets, settings_.micro_rows());
  double loss = 0, one = 1;
  int64_t n_valid = 0;
  xce::run(exec_, LossCount{.targets = {.index = targets_.data()},
                            .rows = settings_.micro_rows(),
                            .vocab_global = model_.config().vocab_size,
                            .n_valid = &n_valid,
                            .weight_sum = nullptr});
  Tape tape(exec_, arena_, parameters_);
  tape.set_recording(false);
  record(tape, 0, &loss, &one, 0);
  return {loss, n_valid};
}

}  // namespace xce

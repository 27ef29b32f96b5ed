#include "src/train/trainer.h"

#include <chrono>
#include <cmath>

#include "src/core/log.h"
#include "src/io/checkpoint.h"
#include "src/model/llama_io.h"
#include "src/train/evaluate.h"
#include "src/train/metrics.h"
#include "src/train/progress.h"
#include "src/train/signals.h"
#include "src/train/tensorboard.h"
#include "src/train/training_state.h"

namespace xce {
namespace {

using Clock = std::chrono::steady_clock;
double ms_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

class Run {
 public:
  explicit Run(const Config& config) : setup_(config), directory_(setup_.config().run.dir) {}
  StopReason go();

 private:
  std::optional<CheckpointReader> find_checkpoint() const;
  void check_same_run(const CheckpointReader& reader) const;
  void open_directory();
  StopReason loop();
  StepRecord one_step(Prefetcher& batches);
  void validate(StepRecord& record, int64_t max_windows);
  void save();
  void finish();

  const Config& config() const { return setup_.config(); }
  const StepState& state() { return setup_.step().state(); }
  TrainingMeta meta() const { return {config_to_yaml(config(), false), setup_.dataset().train->fingerprint()}; }

  RunSetup setup_;
  std::filesystem::path directory_;
  int64_t resumed_step_ = 0, saved_step_ = -1, memory_bytes_ = 0;
  Clock::time_point start_;
  std::optional<FileLock> lock_;  // one process at a time writes into the directory
  std::optional<ValidationWindows> windows_;
  std::optional<MetricsWriter> metrics_;
  std::optional<TensorboardWriter> tensorboard_;
};

std::optional<CheckpointReader> Run::find_checkpoint() const {
  ResumeMode mode = config().run.resume;
  CheckpointSearch search = latest_checkpoint(directory_ / "checkpoints");
  for (const std::string& warning : search.warnings) log().warn("{}", warning);
  if (mode == ResumeMode::kNever && search.latest)
    throw config_error(config(), "run.resume",
                       str("never, but ", search.latest->path.string(), " exists: choose another run.dir"));
  if (mode == ResumeMode::kMust && !search.latest)
    throw config_error(config(), "run.resume",
                       str("must, but there is no checkpoint in ", (directory_ / "checkpoints").string()));
  if (mode == ResumeMode::kNever && path_exists(directory_ / "metrics.jsonl"))
    throw config_error(config(), "run.resume",
                       str("never, but ", directory_.string(), " holds another run's metrics: choose another run.dir"));
  if (!search.latest) return std::nullopt;
  CheckpointReader reader(search.latest->path);
  check_same_run(reader);
  return reader;
}

void Run::check_same_run(const CheckpointReader& reader) const {
  TrainingMeta saved = read_training_meta(reader);
  ConfigChanges changes = changed_keys(parse_config(saved.config_yaml, "the checkpoint's configuration"), config());
  std::string text;
  for (const std::string& change : changes.fatal) text += "\n  " + change;
  if (!text.empty())
    throw Error(ErrorCode::kUsage, str("cannot resume ", directory_.string(), " with other settings:", text));
  if (saved.data_fingerprint != setup_.dataset().train->fingerprint())
    throw Error(ErrorCode::kUsage, str("cannot resume ", directory_.string(),
                                       ": the training data has changed: ", setup_.dataset().train->describe()));
  for (const std::string& change : changes.listed) log().info("changed since the checkpoint: {}", change);
}

void Run::open_directory() {
  remove_unfinished(directory_ / "checkpoints");
  metrics_.emplace(directory_ / "metrics.jsonl", resumed_step_);
  write_text_file(directory_ / "config.resolved.yaml", config_to_yaml(config(), false));
  if (config().log.tensorboard) tensorboard_.emplace(directory_, resumed_step_);
}

// Reads and allocates before it writes: what is refused leaves no trace.
StopReason Run::go() {
  log().info("{}", setup_.describe());
  if (path_exists(directory_)) lock_.emplace(directory_ / ".lock");
  std::optional<CheckpointReader> checkpoint = find_checkpoint();
  if (setup_.dataset().validation) windows_.emplace(setup_.dataset().validation, config().train.seq_len);
  setup_.allocate(checkpoint ? InitialWeights::kFromCheckpoint : InitialWeights::kAsConfigured);
  memory_bytes_ = static_cast<int64_t>(setup_.memory_plan().total());
  if (checkpoint) {
    load_training_state(*checkpoint, setup_.step(), setup_.parameters(), setup_.exec());
    resumed_step_ = saved_step_ = state().step;
    log().info("resumed from step {}", resumed_step_);
  }
  make_directories(directory_);
  if (!lock_) lock_.emplace(directory_ / ".lock");
  if (checkpoint && resumed_step_ >= config().train.steps) {
    log().info("nothing left to do: all {} steps are trained", config().train.steps);
    finish();  // again: a former process may have died before or in it
    return StopReason::kDone;
  }
  open_directory();
  StopSignals signals;  // until the last file is written
  StopReason reason = loop();
  save();
  if (reason != StopReason::kSignal) finish();
  return reason;
}

StopReason Run::loop() {
  start_ = Clock::now();
  Prefetcher batches(setup_.loader(), setup_.batch_plan(), state().step);
  Progress progress({.steps = config().train.steps,
                     .first_step = state().step,
                     .every = config().log.every,
                     .max_minutes = config().train.max_minutes});
  double limit_ms = config().train.max_minutes * 60e3;
  while (state().step < config().train.steps) {
    StepRecord record = one_step(batches);
    int64_t step = record.step;
    bool last = step == config().train.steps;
    bool out_of_time = limit_ms > 0 && ms_since(start_) >= limit_ms;
    bool eval_due = config().eval.every > 0 && step % config().eval.every == 0;
    if (last || out_of_time)
      validate(record, 0);
    else if (eval_due)
      validate(record, config().eval.sequences);
    metrics_->append(record);
    if (tensorboard_) tensorboard_->append(record);
    progress.show(record);
    if (state().skipped > config().optim.nonfinite_limit)
      throw Error(ErrorCode::kNonFinite, str("loss or gradient norm was not finite in ", state().skipped,
                                             " steps, more than optim.nonfinite_limit ", config().optim.nonfinite_limit,
                                             "; last at step ", step));
    if (StopSignals::received() != 0 && !last) {
      log().info("signal {}: saving step {} and stopping", StopSignals::received(), step);
      save();
      return StopReason::kSignal;
    }
    if (out_of_time && !last) {
      log().info("train.max_minutes {} is over at step {} of {}", config().train.max_minutes, step,
                 config().train.steps);
      return StopReason::kTimeLimit;
    }
    if (config().checkpoint.every > 0 && step % config().checkpoint.every == 0 && !last) save();
  }
  return StopReason::kDone;
}

StepRecord Run::one_step(Prefetcher& batches) {
  Clock::time_point begin = Clock::now();
  const Batch& batch = batches.next();
  setup_.step().run(batch.tokens.data(), batch.targets.data());
  double time_ms = ms_since(begin);
  StepRecord record;
  record.step = state().step;
  record.tokens = state().step * setup_.tokens_per_step();
  record.loss = state().loss;
  record.grad_norm = state().grad_norm;
  record.lr = state().lr;
  record.time_ms = time_ms;
  record.tokens_per_s = static_cast<double>(setup_.tokens_per_step()) / time_ms * 1e3;
  record.memory_bytes = memory_bytes_;
  record.data_wait = batches.last_wait_ms() / time_ms;
  record.skipped = state().skipped;
  return record;
}

void Run::validate(StepRecord& record, int64_t max_windows) {
  if (!windows_) return;
  EvalResult result = evaluate(setup_.step(), *windows_, max_windows);
  record.val_loss = result.loss_sum / static_cast<double>(result.targets);
  if (!std::isfinite(*record.val_loss))
    throw Error(ErrorCode::kNonFinite, str("the validation loss at step ", record.step, " is ", *record.val_loss));
  if (config().data.kind == DataKind::kBytes) record.bits_per_byte = *record.val_loss / std::log(2.0);
}

void Run::save() {
  if (saved_step_ == state().step) return;
  metrics_->sync();
  auto path = save_training_state(directory_ / "checkpoints", config().checkpoint.keep, meta(), setup_.step(),
                                  setup_.parameters());
  saved_step_ = state().step;
  log().info("saved {}", path.string());
}

void Run::finish() {
  std::filesystem::path path = directory_ / "export";
  if (state().updates == 0)
    throw Error(ErrorCode::kNonFinite,
                "loss or gradient norm was not finite in every step: there is nothing to export");
  remove_unfinished_files(path);
  save_llama(path, setup_.model(), setup_.parameters());
  log().info("exported {}", path.string());
}

}  // namespace

StopReason train(const Config& config) {
  return Run(config).go();
}

}  // namespace xce

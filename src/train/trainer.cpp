#include "src/train/trainer.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <deque>
#include <filesystem>

#include "src/core/log.h"
#include "src/io/checkpoint.h"
#include "src/model/llama_io.h"
#include "src/train/evaluate.h"
#include "src/train/metrics.h"
#include "src/train/plan_cache.h"
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
  Run(const Config& config, std::unique_ptr<Device> device)
      : setup_(config, std::move(device)), directory_(setup_.config().run.dir) {}
  StopReason go();

 private:
  std::optional<CheckpointReader> find_checkpoint() const;
  void check_same_run(const CheckpointReader& reader) const;
  void open_directory();
  void prepare(const CheckpointReader* checkpoint);
  StopReason loop();
  bool eval_due(int64_t step) const { return config().eval.every > 0 && step % config().eval.every == 0; }
  bool save_due(int64_t step) const { return config().checkpoint.every > 0 && step % config().checkpoint.every == 0; }
  bool may_submit();
  UserCache user_cache() const { return config().run.tune_products ? UserCache::kUse : UserCache::kLeave; }
  void submit(Prefetcher& batches);
  StepRecord collect();
  std::optional<StopReason> stop_asked() const;
  void check_finite(const StepRecord& record) const;
  void validate(StepRecord& record, int64_t max_windows);
  void save();
  void finish();

  const Config& config() const { return setup_.config(); }
  TrainingMeta meta() const { return {config_to_yaml(config(), false), setup_.dataset().train->fingerprint()}; }

  RunSetup setup_;
  std::filesystem::path directory_;
  int64_t resumed_step_ = 0, saved_step_ = -1, memory_bytes_ = 0;
  StepState state_;                     // of the last step that landed
  int64_t submitted_ = 0;               // steps handed over
  std::deque<double> data_waits_ms_{};  // of those that have not landed
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
  prepare(checkpoint ? &*checkpoint : nullptr);
  make_directories(directory_);
  if (!lock_) {
    lock_.emplace(directory_ / ".lock");
    if (path_exists(directory_ / "metrics.jsonl"))
      throw Error(ErrorCode::kUsage,
                  str("another process began to use ", directory_.string(), " meanwhile; call again"));
  }
  save_plans(setup_.device(), directory_, user_cache());
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

// On a GPU with everything a step needs: its memory, its algorithms, its graphs.
void Run::prepare(const CheckpointReader* checkpoint) {
  setup_.allocate(checkpoint ? InitialWeights::kFromCheckpoint : InitialWeights::kAsConfigured);
  if (checkpoint) {
    state_ = load_training_state(*checkpoint, setup_.parameters(), setup_.device().exec());
    resumed_step_ = saved_step_ = submitted_ = state_.step;
    log().info("resumed from step {}", resumed_step_);
  }
  load_plans(setup_.device(), directory_, user_cache());
  setup_.device().set_tuning(config().run.tune_products);
  setup_.prepare();
  setup_.device().set_tuning(false);
  if (checkpoint) setup_.step().set_state(state_);
  if (std::string plans = setup_.device().plans_summary(); !plans.empty()) log().info("{}", plans);
  const size_t planned = setup_.memory_plan().total(), used = setup_.device().used_bytes();
  if (used > 0) log().info("memory      {} planned, {} in use", format_memory(planned), format_memory(used));
  memory_bytes_ = static_cast<int64_t>(used > 0 ? used : planned);
}

StopReason Run::loop() {
  start_ = Clock::now();
  Prefetcher batches(setup_.loader(), setup_.batch_plan(), state_.step);
  Progress progress({.steps = config().train.steps,
                     .first_step = state_.step,
                     .every = config().log.every,
                     .max_minutes = config().train.max_minutes});
  std::optional<StopReason> stop;
  while (true) {
    while (!stop && may_submit()) submit(batches);
    if (setup_.step().pending() == 0) return stop.value_or(StopReason::kDone);
    StepRecord record = collect();
    bool last = record.step == config().train.steps;
    if (!stop && submitted_ < config().train.steps) stop = stop_asked();  // else the run ends of itself
    bool end = last || (stop && setup_.step().pending() == 0);
    if (end && stop != StopReason::kSignal)
      validate(record, 0);
    else if (eval_due(record.step))
      validate(record, config().eval.sequences);
    metrics_->append(record);
    if (tensorboard_) tensorboard_->append(record);
    progress.show(record);
    check_finite(record);
    if (save_due(record.step) && !end) save();
  }
}

// The host runs ahead of a GPU, but not past a step after which weights are read: none is under way then. What has
// landed is looked at first.
bool Run::may_submit() {
  Step& step = setup_.step();
  if (submitted_ >= config().train.steps) return false;
  if (step.pending() == 0) return true;
  return setup_.device().asynchronous() && step.pending() < Step::kSlots && !step.landed() && !eval_due(submitted_) &&
         !save_due(submitted_);
}

void Run::submit(Prefetcher& batches) {
  setup_.step().start_clock();
  const Batch& batch = batches.next();
  data_waits_ms_.push_back(setup_.step().idle() ? batches.last_wait_ms() : 0);  // else the device had work meanwhile
  setup_.step().submit(batch.tokens.data(), batch.targets.data());
  ++submitted_;
}

StepRecord Run::collect() {
  const StepResult result = setup_.step().take();
  state_ = result.state;
  const double per_step = static_cast<double>(setup_.tokens_per_step()), seconds = result.time_ms / 1e3;
  StepRecord record;
  record.step = state_.step;
  record.tokens = state_.step * setup_.tokens_per_step();
  record.loss = state_.loss;
  record.grad_norm = state_.grad_norm;
  record.lr = state_.lr;
  record.time_ms = result.time_ms;
  record.tokens_per_s = per_step / seconds;
  if (double peak = setup_.device().peak_flops(config().train.precision); peak > 0)
    record.mfu = per_step * setup_.model().flops_per_token(config().train.seq_len) / seconds / peak;
  record.memory_bytes = memory_bytes_;
  record.data_wait = std::min(1.0, data_waits_ms_.front() / result.time_ms);
  data_waits_ms_.pop_front();
  record.skipped = state_.skipped;
  return record;
}

// Asked for while steps are under way: the last of them is where the run stops.
std::optional<StopReason> Run::stop_asked() const {
  if (StopSignals::received() != 0) {
    log().info("signal {}: saving step {} and stopping", StopSignals::received(), submitted_);
    return StopReason::kSignal;
  }
  const double limit_ms = config().train.max_minutes * 60e3;
  if (limit_ms > 0 && ms_since(start_) >= limit_ms) {
    log().info("train.max_minutes {} is over at step {} of {}", config().train.max_minutes, submitted_,
               config().train.steps);
    return StopReason::kTimeLimit;
  }
  return std::nullopt;
}

void Run::check_finite(const StepRecord& record) const {
  if (record.val_loss && !std::isfinite(*record.val_loss))
    throw Error(ErrorCode::kNonFinite, str("the validation loss at step ", record.step, " is ", *record.val_loss));
  if (state_.skipped > config().optim.nonfinite_limit)
    throw Error(ErrorCode::kNonFinite, str("loss or gradient norm was not finite in ", state_.skipped,
                                           " steps, more than optim.nonfinite_limit ", config().optim.nonfinite_limit,
                                           "; last at step ", state_.step));
}

void Run::validate(StepRecord& record, int64_t max_windows) {
  if (!windows_) return;
  EvalResult result = evaluate(setup_.step(), *windows_, max_windows);
  record.val_loss = result.loss_sum / static_cast<double>(result.targets);
  if (config().data.kind == DataKind::kBytes) record.bits_per_byte = *record.val_loss / std::log(2.0);
}

void Run::save() {
  if (saved_step_ == state_.step) return;
  metrics_->sync();
  auto path = save_training_state(directory_ / "checkpoints", config().checkpoint.keep, meta(), setup_.step(),
                                  setup_.parameters());
  saved_step_ = state_.step;
  log().info("saved {}", path.string());
}

void Run::finish() {
  std::filesystem::path path = directory_ / "export";
  if (state_.updates == 0)
    throw Error(ErrorCode::kNonFinite,
                "loss or gradient norm was not finite in every step: there is nothing to export");
  remove_unfinished_files(path);
  save_llama(path, setup_.model(), setup_.parameters());
  log().info("exported {}", path.string());
}

}  // namespace

StopReason train(const Config& config, std::unique_ptr<Device> device) {
  return Run(config, std::move(device)).go();
}

}  // namespace xce

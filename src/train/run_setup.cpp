#include "src/train/run_setup.h"

#include <cstdio>

#include "src/model/llama_io.h"

namespace xce {
namespace {

int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

std::string mib(size_t bytes) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.1f MiB", static_cast<double>(bytes) / (1 << 20));
  return text;
}

// 705,152
std::string grouped(int64_t n) {
  std::string digits = std::to_string(n);
  for (int64_t at = static_cast<int64_t>(digits.size()) - 3; at > 0; at -= 3)
    digits.insert(static_cast<size_t>(at), 1, ',');
  return digits;
}

// model.init_from gives the model's shape; keys that were given as well must agree with it.
void take_shape_from(const std::string& directory, Config& config) {
  ModelConfig theirs = HfDirectory(directory).config().model;
  for (const ModelDifference& d : model_differences(theirs, config.model))
    if (config.was_given("model." + d.key))
      throw config_error(config, "model." + d.key,
                         str(d.second, ", but ", directory, " (model.init_from) has ", d.first));
  ModelConfig& model = config.model;
  model = theirs;
}

int threads_of(const Config& config) {
  return static_cast<int>(config.run.threads > 0 ? config.run.threads : hardware_threads());
}

std::unique_ptr<Device> open_device(const Config& config, bool plan_only) {
  if (config.run.device == DeviceKind::kCpu) return make_cpu_device(threads_of(config));
  const CudaDeviceOptions options{.deterministic = config.train.deterministic};
  if (plan_only && cuda_is_built() && cuda_device_count() == 0) return make_planning_device(options);
  try {
    return make_cuda_device(options);
  } catch (const Error& e) {
    if (e.code() != ErrorCode::kUsage) throw;
    throw config_error(config, "run.device", str("cuda: ", e.what()));
  }
}

StepSettings step_settings(const Config& config, const BatchPlan& plan) {
  StepSettings s;
  s.seq_len = config.train.seq_len;
  s.micro_batch = config.train.micro_batch;
  s.micro_batches = plan.rows / config.train.micro_batch;
  s.recompute_blocks = config.train.recompute == RecomputeMode::kBlock;
  s.graph = config.run.graph;
  s.terms = {.z_loss = config.loss.z_loss, .label_smoothing = config.loss.label_smoothing};
  s.loss_workspace_bytes = config.loss.workspace_mib << 20;
  s.schedule = {.kind = config.schedule.kind,
                .lr = config.optim.lr,
                .min_lr = config.schedule.min_lr,
                .warmup = config.schedule.warmup_steps,
                .decay = config.schedule.decay_steps,
                .total = config.train.steps};
  s.max_norm = config.optim.grad_clip;
  s.weight_decay = config.optim.weight_decay;
  s.beta1 = config.optim.beta1;
  s.beta2 = config.optim.beta2;
  s.eps = config.optim.eps;
  return s;
}

}  // namespace

RunSetup::RunSetup(Config config, std::unique_ptr<Device> device)
    : RunSetup(std::move(config), false, 0, std::move(device)) {}
RunSetup::RunSetup(Config config, PlanOnly plan) : RunSetup(std::move(config), true, plan.ranks, nullptr) {}

RunSetup::RunSetup(Config config, bool plan_only, int64_t ranks, std::unique_ptr<Device> device)
    : config_(std::move(config)) {
  if (!config_.model.init_from.empty()) take_shape_from(config_.model.init_from, config_);
  dataset_ = open_dataset(config_);
  finish_config(config_);
  world_ = make_communicator();
  ranks_ = ranks > 0 ? ranks : world_->size();
  pool_ = std::make_unique<ThreadPool>(threads_of(config_));
  device_ = device ? std::move(device) : open_device(config_, plan_only);
  parameters_ = std::make_unique<ParameterSet>(config_.train.precision);
  model_ = std::make_unique<Llama>(config_.model, *parameters_);
  loader_ = std::make_unique<Loader>(dataset_.train, config_.train.seq_len, static_cast<uint64_t>(config_.run.seed));
  model_->prepare(config_.train.seq_len, plan_only ? host_memory() : device_->memory());
  step_ = std::make_unique<Step>(*model_, *parameters_, *world_, *device_, step_settings(config_, batch_plan()));
}

BatchPlan RunSetup::batch_plan() const {
  int64_t global = config_.train.global_batch, micro = config_.train.micro_batch;
  Range mine = partition(global, ranks_, world_->rank());
  int64_t rows = ceil_div(ceil_div(global, ranks_), micro) * micro;
  return {.global_batch = global, .first_sample = mine.begin, .samples = mine.end - mine.begin, .rows = rows};
}

MemoryPlan RunSetup::memory_plan() const {
  const Config& c = config_;
  size_t table = static_cast<size_t>(c.train.seq_len * c.model.head_dim) * size_of(accum_dtype(c.train.precision));
  return {.parameters = parameters_->bytes(),
          .arena = step_->plan_arena_bytes(),
          .other = step_->fixed_bytes() + table + device_->fixed_bytes()};
}

uint64_t RunSetup::checkpoint_bytes() const {
  return 3 * static_cast<uint64_t>(parameters_->size()) * size_of(accum_dtype(config_.train.precision));
}

double RunSetup::communicated_bytes() const {
  double gradients =
      static_cast<double>(parameters_->size()) * static_cast<double>(size_of(accum_dtype(config_.train.precision)));
  return 2 * gradients * static_cast<double>(ranks_ - 1) / static_cast<double>(ranks_);
}

std::string RunSetup::describe() const {
  const Config& c = config_;
  MemoryPlan memory = memory_plan();
  std::ostringstream out;
  out << "model       " << c.model.num_hidden_layers << " layers, hidden " << c.model.hidden_size << ", feed-forward "
      << c.model.intermediate_size << ", heads " << c.model.num_attention_heads << "/" << c.model.num_key_value_heads
      << " of " << c.model.head_dim << ", vocabulary " << grouped(c.model.vocab_size)
      << (c.model.tie_word_embeddings ? ", tied head" : ", untied head") << "\n"
      << "parameters  " << grouped(parameters_->count()) << ", " << name_of(c.train.precision) << "\n"
      << "data        " << dataset_.train->describe() << ": " << grouped(dataset_.train->size()) << " tokens, "
      << grouped(loader_->samples_per_epoch()) << " sequences of " << c.train.seq_len << " an epoch\n";
  if (dataset_.validation)
    out << "validation  " << dataset_.validation->describe() << ": " << grouped(dataset_.validation->size())
        << " tokens\n";
  if (dataset_.entropy_nats) out << "floor       " << *dataset_.entropy_nats << " nats, the source's entropy\n";
  out << "steps       " << grouped(c.train.steps) << " of " << grouped(tokens_per_step()) << " tokens ("
      << c.train.global_batch << " sequences in micro-batches of " << c.train.micro_batch << ")\n"
      << "FLOPs       " << grouped(static_cast<int64_t>(model_->flops_per_token(c.train.seq_len))) << " a token\n"
      << "memory      " << mib(memory.total()) << " a rank: parameters and optimizer " << mib(memory.parameters)
      << ", activations and workspace " << mib(memory.arena) << ", other " << mib(memory.other) << "\n"
      << "exchange    " << mib(static_cast<size_t>(communicated_bytes())) << " a rank and step\n"
      << "checkpoint  " << mib(checkpoint_bytes()) << "\n"
      << "ranks       " << ranks_ << ", seed " << c.run.seed << "\n"
      << "device      " << device_->describe();
  if (double peak = device_->peak_flops(c.train.precision); peak > 0)
    out << ", peak " << static_cast<int64_t>(peak / 1e12) << " TFLOP/s";
  AttentionForward attention{};
  attention.qkv_stride = (c.model.num_attention_heads + 2 * c.model.num_key_value_heads) * c.model.head_dim;
  attention.batch = c.train.micro_batch;
  attention.seq_len = c.train.seq_len;
  attention.heads = c.model.num_attention_heads;
  attention.kv_heads = c.model.num_key_value_heads;
  attention.head_dim = c.model.head_dim;
  attention.dtype = c.train.precision;
  if (std::string kernels = device_->attention_kernels(attention); !kernels.empty()) out << "\nattention   " << kernels;
  return out.str();
}

void RunSetup::allocate(InitialWeights weights) {
  parameters_->allocate(device_->memory());
  if (weights == InitialWeights::kFromCheckpoint) return;
  if (config_.model.init_from.empty()) {
    parameters_->initialize(static_cast<uint64_t>(config_.run.seed), host());
    parameters_->update_compute(device_->exec());
  } else {
    load_llama(HfDirectory(config_.model.init_from), *model_, *parameters_, device_->exec());
  }
}

}  // namespace xce

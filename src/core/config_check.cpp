// What keys must keep to together, after what 0 leaves open has been derived.
#include "kernels/cpu/parallel.h"
#include "kernels/linear_cross_entropy/plan.h"
#include "kernels/linear_cross_entropy/plan_cuda.h"
#include "src/core/config.h"
#include "src/core/config_schema.h"
#include "src/core/number.h"

namespace xce {
namespace {

// Bounds of products of two sizes: with a third one they stay inside 64 bits.
constexpr int64_t kMaxHeadsWidth = 1 << 24, kMaxTokensAtOnce = 2147483647;

bool reads_file(const Config& config) {
  return config.data.kind == DataKind::kBytes || config.data.kind == DataKind::kTokens;
}

void derive(int64_t& value, int64_t derived, const char* key, Config& config) {
  if (value != 0 || derived == 0) return;
  value = derived;
  config.origins[key] = {ConfigOrigin::Kind::kDerived, "", 0, 0};
}

void derive_all(Config& config) {
  ModelSection& model = config.model;
  derive(config.train.global_batch, config.train.micro_batch, "train.global_batch", config);
  if (config.data.kind == DataKind::kBytes) derive(model.vocab_size, 256, "model.vocab_size", config);
  if (config.data.kind == DataKind::kMarkov)
    derive(model.vocab_size, config.data.markov_states, "model.vocab_size", config);
  if (!model.init_from.empty()) return;
  derive(model.num_key_value_heads, model.num_attention_heads, "model.num_key_value_heads", config);
  derive(model.max_position_embeddings, config.train.seq_len, "model.max_position_embeddings", config);
  if (model.head_dim != 0 || model.num_attention_heads == 0) return;
  if (model.hidden_size % model.num_attention_heads != 0) {
    throw config_error(config, "model.num_attention_heads",
                       str("model.hidden_size ", model.hidden_size, " is not a multiple of ", model.num_attention_heads,
                           "; give model.head_dim if that is meant"));
  }
  derive(model.head_dim, model.hidden_size / model.num_attention_heads, "model.head_dim", config);
}

void check_required(Config& config) {
  for (const ConfigKey& key : config_keys(config)) {
    bool from_directory = !config.model.init_from.empty() && key.section() == "model";
    std::string value = value_text(key);
    if (!key.required || from_directory || (value != "0" && !value.empty())) continue;
    throw config_error(config, key.path,
                       config.was_given(key.path) ? str("expected a value, got '", value, "'") : "missing");
  }
}

// Zeros are left alone: they stand for a shape that comes from model.init_from or a token file.
void check_model(const Config& config) {
  const ModelSection& model = config.model;
  int64_t kv_heads = model.num_key_value_heads;
  if (kv_heads != 0 && model.num_attention_heads % kv_heads != 0) {
    throw config_error(
        config, "model.num_key_value_heads",
        str("model.num_attention_heads ", model.num_attention_heads, " is not a multiple of ", kv_heads));
  }
  if (model.head_dim % 2 != 0) {
    throw config_error(config, "model.head_dim", str("expected an even width for rotary pairs, got ", model.head_dim));
  }
  if (model.num_attention_heads * model.head_dim > kMaxHeadsWidth) {
    throw config_error(config, "model.num_attention_heads",
                       str(model.num_attention_heads, " heads of model.head_dim ", model.head_dim, " are wider than ",
                           kMaxHeadsWidth));
  }
  const RopeScaling& rope = model.rope_scaling;
  if (model.has_rope_scaling && rope.low_freq_factor >= rope.high_freq_factor) {
    throw config_error(config, "model.rope_scaling.low_freq_factor",
                       str("expected less than high_freq_factor ", format_double(rope.high_freq_factor), ", got ",
                           format_double(rope.low_freq_factor)));
  }
  if (model.max_position_embeddings != 0 && config.train.seq_len > model.max_position_embeddings) {
    throw config_error(
        config, "train.seq_len",
        str(config.train.seq_len, " is more than model.max_position_embeddings ", model.max_position_embeddings));
  }
}

// Measures the speed of any configuration: from random tokens nothing is learnt, so there is nothing to validate.
void take_synthetic_data(Config& config) {
  config.data.train = config.data.val = "";
  config.data.val_fraction = 0;
  config.eval.every = 0;
}

void check_data(const Config& config) {
  const DataConfig& data = config.data;
  int64_t vocab = config.model.vocab_size;
  if (data.kind == DataKind::kBytes && vocab != 256) {
    throw config_error(config, "model.vocab_size", str("data.kind bytes has 256 tokens, got ", vocab));
  }
  if (data.kind == DataKind::kMarkov && vocab != data.markov_states) {
    throw config_error(config, "model.vocab_size",
                       str("expected data.markov_states ", data.markov_states, ", got ", vocab));
  }
  if (data.kind == DataKind::kSynthetic && vocab == 0 && config.model.init_from.empty()) {
    throw config_error(config, "model.vocab_size", "missing; data.kind synthetic needs it");
  }
  if (reads_file(config) && data.train.empty())
    throw config_error(config, "data.train", "missing; name the file to learn from");
  if (!data.val.empty() && data.val_fraction > 0) {
    throw config_error(config, "data.val_fraction", "give either data.val or data.val_fraction");
  }
  if (!reads_file(config)) {
    const char* file_key = !data.train.empty() ? "data.train" : !data.val.empty() ? "data.val" : nullptr;
    if (file_key != nullptr) throw config_error(config, file_key, "data.kind markov reads no file");
  }
  if (data.val.empty() && data.val_fraction == 0 && config.eval.every > 0) {
    throw config_error(config, "eval.every", "nothing to validate on; give data.val or data.val_fraction");
  }
}

void check_schedule(const Config& config) {
  const ScheduleConfig& schedule = config.schedule;
  const TrainConfig& train = config.train;
  if (train.global_batch < train.micro_batch) {
    throw config_error(config, "train.global_batch",
                       str(train.global_batch, " is less than train.micro_batch ", train.micro_batch));
  }
  if (train.micro_batch * train.seq_len > kMaxTokensAtOnce) {
    throw config_error(config, "train.micro_batch",
                       str(train.micro_batch, " sequences of train.seq_len ", train.seq_len, " are more than ",
                           kMaxTokensAtOnce, " tokens at a time"));
  }
  if (schedule.min_lr > config.optim.lr) {
    throw config_error(config, "schedule.min_lr",
                       str(format_double(schedule.min_lr), " is more than optim.lr ", format_double(config.optim.lr)));
  }
  if ((schedule.kind == ScheduleKind::kWsd) != (schedule.decay_steps > 0)) {
    throw config_error(
        config, "schedule.decay_steps",
        schedule.decay_steps > 0 ? "only schedule.kind wsd has it" : "missing; schedule.kind wsd needs it");
  }
  if (schedule.decay_steps > train.steps) {
    throw config_error(config, "schedule.decay_steps",
                       str(schedule.decay_steps, " is more than train.steps ", train.steps));
  }
}

void check_workspace(const Config& config, size_t needed_bytes, const std::string& where) {
  auto needed_mib = static_cast<int64_t>((needed_bytes + (size_t{1} << 20) - 1) >> 20);
  if (config.loss.workspace_mib >= needed_mib) return;
  throw config_error(config, "loss.workspace_mib",
                     str(config.loss.workspace_mib, " MiB are too few for model.hidden_size ", config.model.hidden_size,
                         " and a vocabulary of ", config.model.vocab_size, where, "; expected at least ", needed_mib));
}

// The loss needs at least one row of logits at a time, and a row of gradients for each thread.
void check_loss(const Config& config) {
  int64_t vocab = config.model.vocab_size, hidden = config.model.hidden_size;
  if (vocab == 0 || hidden == 0) return;
  DType dtype = config.train.precision, accum = accum_dtype(dtype);
  if (config.run.device == DeviceKind::kCuda) {
    CudaLossShape on_gpu{.rows = config.train.micro_batch * config.train.seq_len,
                         .hidden = hidden,
                         .vocab = vocab,
                         .bytes = static_cast<int64_t>(size_of(dtype)),
                         .accum_bytes = static_cast<int64_t>(size_of(accum)),
                         .may_keep = true,
                         .gradients = true};
    return check_workspace(config, minimum_workspace_bytes(on_gpu), "");
  }
  LossShape shape{.rows = config.train.micro_batch * config.train.seq_len,
                  .hidden = hidden,
                  .vocab = vocab,
                  .accum_bytes = static_cast<int64_t>(size_of(accum)),
                  .threads = config.run.threads > 0 ? config.run.threads : hardware_threads(),
                  .converts_weight = dtype != accum,
                  .may_keep = true,
                  .gradients = true};
  check_workspace(config, minimum_workspace_bytes(shape), str(" on ", shape.threads, " threads"));
}

void check_supported(Config& config) {
  for (const ConfigKey& key : config_keys(config)) {
    bool limited = key.path == "parallel.shard" || key.path == "parallel.head" || key.path == "loss.softcap";
    std::string value = value_text(key);
    if (!limited || value == "none" || value == "0") continue;
    throw config_error(config, key.path, str(value, " is not supported by this version"));
  }
}

}  // namespace

Error config_error(const Config& config, const std::string& key, const std::string& message) {
  auto found = config.origins.find(key);
  bool given = found != config.origins.end() && found->second.kind != ConfigOrigin::Kind::kDerived;
  std::string where = given ? found->second.where() : config.file.empty() ? "config" : config.file;
  return Error(ErrorCode::kUsage, str(where, ": ", key, ": ", message));
}

void finish_config(Config& config) {
  check_required(config);
  if (config.data.kind == DataKind::kSynthetic) take_synthetic_data(config);
  derive_all(config);
  check_model(config);
  check_data(config);
  check_schedule(config);
  check_loss(config);
  check_supported(config);
}

}  // namespace xce

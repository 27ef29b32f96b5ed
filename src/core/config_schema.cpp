// The rows of the table, then one function per direction: text to value, value to text.
#include "src/core/config_schema.h"

#include <cmath>

#include "src/core/config_yaml.h"
#include "src/core/number.h"
#include "src/core/suggest.h"

namespace xce {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
// Largest sizes that are taken for meant. Products of two stay inside 64 bits, of three they do not: check_model bounds
// the widths that are products themselves, ParameterSet::add and check_schedule the numbers of elements and tokens.
constexpr double kMaxTokenId = 2147483647, kMaxSize = 1 << 24, kMaxCount = 1e15;
// Smallest eps: still a normal number when rounded to fp32, so a zero root plus eps never divides by zero.
constexpr double kMinEps = 1e-30;

Limits at_least(double low, double high = kInfinity) {
  return {low, high, false, false};
}
Limits above(double low) {
  return {low, kInfinity, true, false};
}
Limits fraction() {
  return {0, 1, false, true};
}

template <class Enum>
ChoiceField choice(Enum& value, std::vector<std::string> names) {
  return {std::move(names), [&value] { return static_cast<int>(value); },
          [&value](int index) { value = static_cast<Enum>(index); }};
}

class KeyTable {
 public:
  void add(const char* path, ConfigField field, const char* help) { add(path, std::move(field), {}, help); }
  void add(const char* path, ConfigField field, Limits limits, const char* help) {
    keys_.push_back({path, std::move(field), limits, false, help});
  }
  // 0 or an empty text counts as missing.
  void require(const char* path, ConfigField field, const char* help) { require(path, std::move(field), {}, help); }
  void require(const char* path, ConfigField field, Limits limits, const char* help) {
    keys_.push_back({path, std::move(field), limits, true, help});
  }
  std::vector<ConfigKey> take() { return std::move(keys_); }

 private:
  std::vector<ConfigKey> keys_;
};

void add_run(RunConfig& run, KeyTable& table) {
  table.require("run.dir", &run.dir, "directory of this run: metrics, checkpoints, export; made if missing");
  table.add("run.seed", &run.seed, at_least(0, kMaxCount), "seed of the first weights and of the data order");
  table.add("run.device", choice(run.device, {"cpu", "cuda"}), "where the model lives");
  table.add("run.resume", choice(run.resume, {"auto", "never", "must"}),
            "auto: go on if run.dir holds a checkpoint; never: refuse a used run.dir; must: refuse a fresh one");
  table.add("run.threads", &run.threads, at_least(0, 1024), "CPU threads; 0: every core");
  table.add("run.graph", &run.graph, "cuda: a step is one CUDA graph; false: its kernels are launched one by one");
  table.add("run.tune_products", &run.tune_products,
            "cuda: the first start races the algorithms of every matrix product and keeps the choice for later ones; "
            "false: cuBLASLt's first answer");
}

void add_rope_scaling(ModelConfig& model, KeyTable& table) {
  ChoiceField type{{"default", "llama3"},
                   [&model] { return static_cast<int>(model.has_rope_scaling); },
                   [&model](int index) { model.has_rope_scaling = index == 1; }};
  table.add("model.rope_scaling.rope_type", std::move(type),
            "default: frequencies as they are; llama3: low ones divided by factor");
  RopeScaling& rope = model.rope_scaling;
  table.add("model.rope_scaling.factor", &rope.factor, at_least(1), "llama3: divides the low frequencies");
  table.add("model.rope_scaling.low_freq_factor", &rope.low_freq_factor, above(0),
            "llama3: wavelengths longer than original length / this are divided");
  table.add("model.rope_scaling.high_freq_factor", &rope.high_freq_factor, above(0),
            "llama3: wavelengths shorter than original length / this stay");
  table.add("model.rope_scaling.original_max_position_embeddings", &rope.original_max_position, at_least(1, kMaxSize),
            "llama3: length the frequencies were made for");
}

void add_model(ModelSection& model, KeyTable& table) {
  table.add("model.vocab_size", &model.vocab_size, at_least(0, kMaxTokenId),
            "tokens in the vocabulary; 0: what the data needs (256 for bytes)");
  table.require("model.hidden_size", &model.hidden_size, at_least(0, kMaxSize), "width of the residual stream");
  table.require("model.intermediate_size", &model.intermediate_size, at_least(0, kMaxSize),
                "width inside the SwiGLU feed-forward");
  table.require("model.num_hidden_layers", &model.num_hidden_layers, at_least(0, 10000), "transformer blocks");
  table.require("model.num_attention_heads", &model.num_attention_heads, at_least(0, kMaxSize), "query heads");
  table.add("model.num_key_value_heads", &model.num_key_value_heads, at_least(0, kMaxSize),
            "key and value heads, shared by groups of query heads; 0: as many as query heads");
  table.add("model.head_dim", &model.head_dim, at_least(0, kMaxSize),
            "width of a head, even; 0: hidden_size / num_attention_heads");
  table.add("model.rms_norm_eps", &model.rms_norm_eps, at_least(kMinEps), "added to the mean square in RMSNorm");
  table.add("model.rope_theta", &model.rope_theta, above(0), "base of the rotary frequencies");
  table.add("model.tie_word_embeddings", &model.tie_word_embeddings, "embedding and LM head share one matrix");
  table.add("model.initializer_range", &model.initializer_range, above(0), "standard deviation of the first weights");
  table.add("model.max_position_embeddings", &model.max_position_embeddings, at_least(0, kMaxSize),
            "longest sequence, kept in the export; 0: train.seq_len");
  table.add("model.init_from", &model.init_from,
            "Hugging Face directory that gives the first weights and the model's shape");
  add_rope_scaling(model, table);
}

void add_data_and_train(Config& config, KeyTable& table) {
  DataConfig& data = config.data;
  table.add("data.kind", choice(data.kind, {"bytes", "tokens", "markov", "synthetic"}),
            "bytes: any file, a byte is a token; tokens: a token file; markov: a source of known entropy; synthetic: "
            "random tokens to measure speed with, data.train, data.val, data.val_fraction and eval.every are passed "
            "over");
  table.add("data.train", &data.train, "file to learn from (kinds bytes and tokens)");
  table.add("data.val", &data.val, "file to validate on");
  table.add("data.val_fraction", &data.val_fraction, fraction(),
            "without data.val: this last part of data.train is held out; markov: length of the validation data over "
            "that of training");
  table.add("data.markov_states", &data.markov_states, at_least(4, 65536), "markov: states, each a token");
  table.add("data.generated_tokens", &data.generated_tokens, at_least(1, kMaxCount),
            "markov and synthetic: length of the source");
  TrainConfig& train = config.train;
  table.require("train.steps", &train.steps, at_least(0, kMaxCount), "steps of the whole run; the schedule ends there");
  table.require("train.seq_len", &train.seq_len, at_least(0, kMaxSize), "tokens in a sequence");
  table.add("train.micro_batch", &train.micro_batch, at_least(1, kMaxSize),
            "sequences that one rank computes at a time: sets the memory, not the result");
  table.add("train.global_batch", &train.global_batch, at_least(0, kMaxSize),
            "sequences in a step, over all ranks and micro-batches; 0: train.micro_batch");
  table.add("train.precision", choice(train.precision, {"fp32", "bf16", "fp64"}),
            "type of weights and activations in the computation; master weights are fp32 (fp64 for fp64)");
  table.add("train.recompute", choice(train.recompute, {"none", "block"}),
            "block: keep only each block's input and compute the rest again in backward; same result, less memory");
  table.add("train.max_minutes", &train.max_minutes, at_least(0), "stop and save after this time; 0: no limit");
  table.add("train.deterministic", &train.deterministic,
            "true: a run with the same gemm_plans.txt gives the same bits; false: cuda adds up attention's gradients "
            "in any order, which is faster "
            "and takes less memory");
}

void add_optim(Config& config, KeyTable& table) {
  OptimConfig& optim = config.optim;
  table.add("optim.lr", &optim.lr, at_least(0), "peak learning rate of AdamW");
  table.add("optim.beta1", &optim.beta1, fraction(), "decay of the gradient's mean");
  table.add("optim.beta2", &optim.beta2, fraction(), "decay of the gradient's mean square");
  table.add("optim.eps", &optim.eps, at_least(kMinEps), "added to the root of the mean square");
  table.add("optim.weight_decay", &optim.weight_decay, at_least(0), "decoupled decay of matrices; norms have none");
  table.add("optim.grad_clip", &optim.grad_clip, at_least(0), "largest norm of the whole gradient; 0: no clipping");
  table.add("optim.nonfinite_limit", &optim.nonfinite_limit, at_least(0, kMaxCount),
            "steps skipped because loss or gradient were not finite, before the run ends with exit code 4");
  ScheduleConfig& schedule = config.schedule;
  table.add("schedule.kind", choice(schedule.kind, {"constant", "linear", "cosine", "wsd"}),
            "after the warm-up: constant; linear or cosine to min_lr at the last step; wsd: constant, then linear");
  table.add("schedule.warmup_steps", &schedule.warmup_steps, at_least(0, kMaxCount), "linear rise to optim.lr");
  table.add("schedule.decay_steps", &schedule.decay_steps, at_least(0, kMaxCount), "wsd: length of the last fall");
  table.add("schedule.min_lr", &schedule.min_lr, at_least(0), "learning rate at the last step");
}

void add_parallel_and_loss(Config& config, KeyTable& table) {
  table.add("parallel.shard", choice(config.parallel.shard, {"none", "optimizer", "full"}),
            "what ranks divide among them; this version: none");
  table.add("parallel.head", choice(config.parallel.head, {"none", "units", "vocab"}),
            "how ranks divide the LM head; this version: none");
  LossConfig& loss = config.loss;
  table.add("loss.workspace_mib", &loss.workspace_mib, at_least(1, 1 << 20),
            "memory for the chunks of logits; the whole [tokens, vocab] is never kept");
  table.add("loss.z_loss", &loss.z_loss, at_least(0), "weight of the squared log-partition in the loss");
  table.add("loss.label_smoothing", &loss.label_smoothing, fraction(),
            "share of each target's mass spread over the vocabulary; evaluations do without");
  table.add("loss.softcap", &loss.softcap, at_least(0), "this version: 0");
}

void add_output(Config& config, KeyTable& table) {
  table.add("checkpoint.every", &config.checkpoint.every, at_least(0, kMaxCount), "steps; 0: at the end only");
  table.add("checkpoint.keep", &config.checkpoint.keep, at_least(1, kMaxCount), "newest checkpoints to keep");
  table.add("eval.every", &config.eval.every, at_least(0, kMaxCount), "steps; 0: at the end only");
  table.add("eval.sequences", &config.eval.sequences, at_least(0, kMaxCount),
            "validation sequences on the way, spread over the set (the end takes all); 0: all");
  table.add("log.every", &config.log.every, at_least(1, kMaxCount), "steps from one printed line to the next");
  table.add("log.tensorboard", &config.log.tensorboard, "write TensorBoard event files into run.dir");
}

std::string quoted(const std::string& text) {
  std::string result = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\') result += '\\';
    result += c;
  }
  return result + '"';
}

std::string joined(const std::vector<std::string>& names, const char* separator) {
  std::string result;
  for (const std::string& name : names) result += (result.empty() ? "" : separator) + name;
  return result;
}

bool has_control_character(const std::string& text) {
  for (unsigned char c : text) {
    if (c < 0x20 || c == 0x7F) return true;
  }
  return false;
}

std::optional<std::string> assign_text(std::string* field, const std::string& text) {
  if (has_control_character(text)) return "expected one line of text without control characters";
  if (find_invalid_utf8(text) != std::string::npos) return "expected UTF-8 text";
  *field = text;
  return {};
}

std::optional<std::string> assign_bool(bool* field, const std::string& text) {
  if (text != "true" && text != "false") return str("expected true or false, got '", text, "'");
  *field = text == "true";
  return {};
}

template <class T>
std::optional<std::string> assign_number(const ConfigKey& key, T* field, const std::string& text) {
  T value = 0;
  NumberText outcome = parse_number(text, &value);
  bool ok = outcome == NumberText::kOk && key.limits.contain(static_cast<double>(value));
  if (!ok)
    return str("expected ", std::is_same_v<T, double> ? "a number" : "a whole number", key.limits.text(), ", got '",
               text, "'");
  *field = value;
  return {};
}

std::optional<std::string> assign_choice(const ChoiceField& field, const std::string& text) {
  for (size_t i = 0; i < field.names.size(); ++i) {
    if (field.names[i] != text) continue;
    field.set(static_cast<int>(i));
    return {};
  }
  std::string nearest = nearest_name(text, field.names);
  return str("expected one of ", joined(field.names, ", "), ", got '", text, "'",
             nearest.empty() ? "" : str("; did you mean '", nearest, "'?"));
}

}  // namespace

bool Limits::contain(double value) const {
  bool low_ok = low_open ? value > low : value >= low;
  bool high_ok = high_open ? value < high : value <= high;
  return std::isfinite(value) && low_ok && high_ok;
}

std::string Limits::text() const {
  std::string result;
  if (std::isfinite(low)) result = str(low_open ? " > " : " >= ", format_double(low));
  if (std::isfinite(high)) {
    std::string bound = high < 1e15 ? str(static_cast<int64_t>(high)) : format_double(high);
    result += str(result.empty() ? "" : " and", high_open ? " < " : " <= ", bound);
  }
  return result;
}

std::vector<ConfigKey> config_keys(Config& config) {
  KeyTable table;
  add_run(config.run, table);
  add_model(config.model, table);
  add_data_and_train(config, table);
  add_optim(config, table);
  add_parallel_and_loss(config, table);
  add_output(config, table);
  return table.take();
}

std::optional<std::string> assign(const ConfigKey& key, const std::string& text) {
  if (auto* const* field = std::get_if<int64_t*>(&key.field)) return assign_number(key, *field, text);
  if (auto* const* field = std::get_if<double*>(&key.field)) return assign_number(key, *field, text);
  if (auto* const* field = std::get_if<bool*>(&key.field)) return assign_bool(*field, text);
  if (auto* const* field = std::get_if<std::string*>(&key.field)) return assign_text(*field, text);
  return assign_choice(std::get<ChoiceField>(key.field), text);
}

std::string value_text(const ConfigKey& key) {
  if (auto* const* field = std::get_if<int64_t*>(&key.field)) return str(**field);
  if (auto* const* field = std::get_if<double*>(&key.field)) return format_double(**field);
  if (auto* const* field = std::get_if<bool*>(&key.field)) return **field ? "true" : "false";
  if (auto* const* field = std::get_if<std::string*>(&key.field)) return **field;
  const auto& field = std::get<ChoiceField>(key.field);
  return field.names[static_cast<size_t>(field.get())];
}

std::string value_yaml(const ConfigKey& key) {
  return std::holds_alternative<std::string*>(key.field) ? quoted(value_text(key)) : value_text(key);
}

std::string type_text(const ConfigKey& key) {
  if (std::holds_alternative<int64_t*>(key.field)) return "integer" + key.limits.text();
  if (std::holds_alternative<double*>(key.field)) return "number" + key.limits.text();
  if (std::holds_alternative<bool*>(key.field)) return "true or false";
  if (std::holds_alternative<std::string*>(key.field)) return "text";
  return joined(std::get<ChoiceField>(key.field).names, " | ");
}

}  // namespace xce

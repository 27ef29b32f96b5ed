// The run's settings: one struct per YAML section, filled from a file and from `section.key=value` words. The table in
// config_schema.cpp is the only list of keys: parsing, overrides, --print-config, suggestions and documentation follow
// it.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "kernels/base/check.h"
#include "kernels/base/dtype.h"
#include "kernels/step_control.h"
#include "src/core/model_config.h"

namespace xce {

enum class DeviceKind : int32_t { kCpu, kCuda };
enum class ResumeMode : int32_t { kAuto, kNever, kMust };
enum class DataKind : int32_t { kBytes, kTokens, kMarkov, kSynthetic };
enum class RecomputeMode : int32_t { kNone, kBlock };
enum class ShardMode : int32_t { kNone, kOptimizer, kFull };
enum class HeadMode : int32_t { kNone, kUnits, kVocab };

struct RunConfig {
  std::string dir;
  int64_t seed = 0;
  DeviceKind device = DeviceKind::kCpu;
  ResumeMode resume = ResumeMode::kAuto;
  int64_t threads = 0;  // 0: every core
  bool graph = true, tune_products = true;
};

// Where 0 means "derived", a loaded Config holds the derived value: vocab_size (stays 0 for data.kind tokens: the token
// file's), num_key_value_heads, head_dim, max_position_embeddings.
struct ModelSection : ModelConfig {
  ModelSection() { max_position_embeddings = 0; }
  std::string init_from;  // a Hugging Face directory; empty: random weights
};

struct DataConfig {
  DataKind kind = DataKind::kBytes;
  std::string train, val;
  double val_fraction = 0;  // the last part of data.train, held out when data.val is empty
  int64_t markov_states = 64;
  int64_t generated_tokens = 1000000;  // markov, synthetic: length of the source
};

struct TrainConfig {
  int64_t steps = 0, seq_len = 0, micro_batch = 1;
  int64_t global_batch = 0;  // 0: micro_batch
  DType precision = DType::kF32;
  RecomputeMode recompute = RecomputeMode::kNone;
  double max_minutes = 0;  // 0: no limit
  bool deterministic = true;
};

struct OptimConfig {
  double lr = 1e-3, beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0.1, grad_clip = 1.0;
  int64_t nonfinite_limit = 10;
};

struct ScheduleConfig {
  ScheduleKind kind = ScheduleKind::kCosine;
  int64_t warmup_steps = 0, decay_steps = 0;
  double min_lr = 0;
};

struct ParallelConfig {
  ShardMode shard = ShardMode::kNone;
  HeadMode head = HeadMode::kNone;
};

struct CheckpointConfig {
  int64_t every = 0;  // 0: at the end only
  int64_t keep = 2;
};

struct EvalConfig {
  int64_t every = 0;      // 0: at the end only
  int64_t sequences = 0;  // of each evaluation but the last, which takes all; 0: all
};

struct LogConfig {
  int64_t every = 10;
  bool tensorboard = true;
};

struct LossConfig {
  int64_t workspace_mib = 64;
  double z_loss = 0, label_smoothing = 0, softcap = 0;
};

// Where a value came from; a key without an origin has its default.
struct ConfigOrigin {
  enum class Kind { kFile, kCommandLine, kDerived } kind = Kind::kFile;
  std::string file;  // kFile: the name as given; kCommandLine: the word itself
  int line = 0, column = 0;
  std::string where() const;  // "file:line:column" or "command line 'train.steps=5'"
};

struct Config {
  RunConfig run;
  ModelSection model;
  DataConfig data;
  TrainConfig train;
  OptimConfig optim;
  ScheduleConfig schedule;
  ParallelConfig parallel;
  CheckpointConfig checkpoint;
  EvalConfig eval;
  LogConfig log;
  LossConfig loss;
  std::string file;                             // the YAML file's name as given
  std::map<std::string, ConfigOrigin> origins;  // by key path, "model.hidden_size"

  bool was_given(const std::string& key) const;  // in the file or on the command line
};

// Reads the YAML file, applies the words "section.key=value" over it, derives and checks. Relative paths stay as they
// are. Anything wrong throws Error(kUsage, "file:line:column: what, key, value and the nearest known name").
Config load_config(const std::string& path, const std::vector<std::string>& overrides = {});
// The same from text; file_name is used in messages only.
Config parse_config(const std::string& text, const std::string& file_name,
                    const std::vector<std::string>& overrides = {});

// Derives what 0 leaves open and checks what keys must keep to together; both loaders end with it. With model.init_from
// the model's shape is neither derived nor required: call it again once the shape is filled in from that directory.
void finish_config(Config& config);

// The whole configuration as YAML that parse_config reads back to the same values; with_origins adds "# default",
// "# file:line" or "# command line" behind each value (--print-config).
std::string config_to_yaml(const Config& config, bool with_origins);

// What a resumed run may not change (model.*, data.*, run.seed, train.seq_len, train.global_batch, train.precision) and
// what it may; each entry reads "key: old -> new". run.dir and run.resume are never listed.
struct ConfigChanges {
  std::vector<std::string> fatal, listed;
};
ConfigChanges changed_keys(const Config& before, const Config& after);

// One row per key for --help-config and configs/README.md.
struct ConfigKeyHelp {
  std::string key, type, default_value, help;
};
std::vector<ConfigKeyHelp> config_help();

// An error about a key: "where: key: message", with where the key was given. For checks that need more than the config.
Error config_error(const Config& config, const std::string& key, const std::string& message);

}  // namespace xce

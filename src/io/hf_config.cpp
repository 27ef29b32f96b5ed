#include "src/io/hf_config.h"

#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "kernels/base/check.h"
#include "src/core/config_schema.h"
#include "src/core/file.h"
#include "src/io/json.h"

namespace xce {
namespace {

using Json = nlohmann::json;

// One JSON object of the file with the path of its keys for messages; null counts as absent, as in transformers.
class Section {
 public:
  Section(const Json& json, std::string file, std::string prefix = "")
      : json_(json), file_(std::move(file)), prefix_(std::move(prefix)) {}

  bool has(const std::string& key) const { return json_.contains(key) && !json_.at(key).is_null(); }
  const Json& at(const std::string& key) const { return json_.at(key); }
  Section section(const std::string& key) const {
    if (!at(key).is_object()) mistyped(key, "an object");
    return {at(key), file_, prefix_ + key + "."};
  }
  int64_t integer(const std::string& key) const {
    require(key);
    if (!at(key).is_number_integer()) mistyped(key, "an integer");
    return at(key).get<int64_t>();
  }
  int64_t positive(const std::string& key) const {
    int64_t value = integer(key);
    if (value < 1) mistyped(key, "a positive integer");
    return value;
  }
  double positive_number(const std::string& key) const {
    require(key);
    if (!at(key).is_number() || !(at(key).get<double>() > 0)) mistyped(key, "a positive number");
    return at(key).get<double>();
  }
  bool boolean(const std::string& key, bool fallback) const {
    if (!has(key)) return fallback;
    if (!at(key).is_boolean()) mistyped(key, "true or false");
    return at(key).get<bool>();
  }
  std::string text(const std::string& key) const {
    require(key);
    if (!at(key).is_string()) mistyped(key, "a string");
    return at(key).get<std::string>();
  }
  // Where the file says something that this project does not do.
  [[noreturn]] void unsupported(const std::string& key, const std::string& supported) const {
    throw Error(ErrorCode::kUsage,
                str(file_, ": ", prefix_, key, " is ", at(key).dump(), ", only ", supported, " is supported"));
  }
  [[noreturn]] void mistyped(const std::string& key, const std::string& expected) const {
    throw Error(ErrorCode::kCorrupt, str(file_, ": ", prefix_, key, " is ", at(key).dump(), ", expected ", expected));
  }

 private:
  void require(const std::string& key) const {
    if (!has(key)) throw Error(ErrorCode::kCorrupt, str(file_, ": no ", prefix_, key));
  }
  const Json& json_;
  std::string file_, prefix_;
};

void refuse_unsupported(const Section& top) {
  if (top.has("architectures") && top.at("architectures") != Json::array({"LlamaForCausalLM"}))
    top.unsupported("architectures", R"(["LlamaForCausalLM"])");
  if (top.has("model_type") && top.at("model_type") != "llama") top.unsupported("model_type", "\"llama\"");
  if (!top.has("architectures") && !top.has("model_type")) top.text("model_type");
  if (top.has("hidden_act") && top.at("hidden_act") != "silu") top.unsupported("hidden_act", "\"silu\"");
  for (const char* key : {"attention_bias", "mlp_bias"})
    if (top.boolean(key, false)) top.unsupported(key, "false");
  if (top.has("attention_dropout") && top.at("attention_dropout") != 0) top.unsupported("attention_dropout", "0");
  if (top.has("partial_rotary_factor") && top.at("partial_rotary_factor") != 1)
    top.unsupported("partial_rotary_factor", "1");
  if (top.has("quantization_config")) top.unsupported("quantization_config", "none");
}

struct RopeSettings {
  std::optional<double> theta;
  bool scaled = false;
  RopeScaling scaling{};
  bool operator==(const RopeSettings& other) const {
    return scaled == other.scaled && scaling.factor == other.scaling.factor &&
           scaling.low_freq_factor == other.scaling.low_freq_factor &&
           scaling.high_freq_factor == other.scaling.high_freq_factor &&
           scaling.original_max_position == other.scaling.original_max_position;
  }
};

RopeSettings parse_rope(const Section& section) {
  RopeSettings rope;
  if (section.has("rope_theta")) rope.theta = section.positive_number("rope_theta");
  if (section.has("partial_rotary_factor") && section.at("partial_rotary_factor") != 1)
    section.unsupported("partial_rotary_factor", "1");
  const char* type_key = section.has("rope_type") ? "rope_type" : "type";  // "type": before transformers 4.43
  if (!section.has(type_key) || section.at(type_key) == "default") return rope;
  if (section.at(type_key) != "llama3") section.unsupported(type_key, "\"default\" or \"llama3\"");
  rope.scaled = true;
  rope.scaling.factor = section.positive_number("factor");
  rope.scaling.low_freq_factor = section.positive_number("low_freq_factor");
  rope.scaling.high_freq_factor = section.positive_number("high_freq_factor");
  rope.scaling.original_max_position = static_cast<double>(section.positive("original_max_position_embeddings"));
  if (rope.scaling.high_freq_factor <= rope.scaling.low_freq_factor)
    section.mistyped("high_freq_factor", "more than low_freq_factor");
  return rope;
}

// rope_theta may stand at the top (transformers 4) and in rope_parameters (5), the scaling in rope_scaling (4) and
// rope_parameters (5); where both stand they must agree.
void read_rope(const Section& top, ModelConfig& model) {
  RopeSettings rope;
  for (const char* key : {"rope_parameters", "rope_scaling"}) {
    if (!top.has(key)) continue;
    RopeSettings found = parse_rope(top.section(key));
    if (top.has("rope_parameters") && std::string_view(key) == "rope_scaling" && !(found == rope))
      top.mistyped(key, "what rope_parameters says");
    if (!found.theta) found.theta = rope.theta;
    rope = found;
  }
  if (top.has("rope_theta")) {
    double theta = top.positive_number("rope_theta");
    if (rope.theta && *rope.theta != theta)
      top.mistyped("rope_theta", str("what the rope parameters say, ", *rope.theta));
    rope.theta = theta;
  }
  model.rope_theta = rope.theta.value_or(10000.0);
  model.has_rope_scaling = rope.scaled;
  model.rope_scaling = rope.scaling;
}

// The limits of the settings that have the same names.
void check_limits(const ModelConfig& model, const std::string& file_name) {
  Config config;
  static_cast<ModelConfig&>(config.model) = model;
  for (const ConfigKey& key : config_keys(config)) {
    bool scaling = key.section() == "model.rope_scaling";
    if (key.section() != "model" && !(scaling && model.has_rope_scaling)) continue;
    double value = 0;
    if (auto* const* integer = std::get_if<int64_t*>(&key.field)) {
      value = static_cast<double>(**integer);
    } else if (auto* const* number = std::get_if<double*>(&key.field)) {
      value = **number;
    } else {
      continue;
    }
    if (!key.limits.contain(value))
      throw Error(ErrorCode::kUsage, str(file_name, ": ", scaling ? "rope_scaling." : "", key.name(), " is ",
                                         value_text(key), ", only values", key.limits.text(), " are supported"));
  }
}

ModelConfig read_model(const Section& top) {
  ModelConfig model;
  model.vocab_size = top.positive("vocab_size");
  model.hidden_size = top.positive("hidden_size");
  model.intermediate_size = top.positive("intermediate_size");
  model.num_hidden_layers = top.positive("num_hidden_layers");
  model.num_attention_heads = top.positive("num_attention_heads");
  model.num_key_value_heads = model.num_attention_heads;
  if (top.has("num_key_value_heads")) model.num_key_value_heads = top.positive("num_key_value_heads");
  if (model.num_attention_heads % model.num_key_value_heads != 0)
    top.mistyped("num_key_value_heads", str("a divisor of num_attention_heads, ", model.num_attention_heads));
  if (top.has("head_dim")) {
    model.head_dim = top.positive("head_dim");
    if (model.head_dim % 2 != 0) top.unsupported("head_dim", "an even number");
  } else {
    model.head_dim = model.hidden_size / model.num_attention_heads;
    if (model.hidden_size % model.num_attention_heads != 0 || model.head_dim % 2 != 0)
      top.mistyped("hidden_size", str("an even multiple of num_attention_heads, ", model.num_attention_heads));
  }
  if (top.has("max_position_embeddings")) model.max_position_embeddings = top.positive("max_position_embeddings");
  model.rms_norm_eps = top.has("rms_norm_eps") ? top.positive_number("rms_norm_eps") : 1e-6;
  if (top.has("initializer_range")) model.initializer_range = top.positive_number("initializer_range");
  model.tie_word_embeddings = top.boolean("tie_word_embeddings", false);
  read_rope(top, model);
  return model;
}

constexpr std::array<std::pair<const char*, DType>, 4> kDtypes = {
    {{"float32", DType::kF32}, {"bfloat16", DType::kBf16}, {"float64", DType::kF64}, {"float16", DType::kF32}}};

DType read_dtype(const Section& top) {
  const char* key = top.has("dtype") ? "dtype" : "torch_dtype";
  if (!top.has(key)) return DType::kF32;
  for (const auto& [name, dtype] : kDtypes)
    if (top.text(key) == name) return dtype;
  top.unsupported(key, "float32, bfloat16, float16 or float64");
}

const char* torch_name(DType dtype) {
  for (const auto& [name, known] : kDtypes)
    if (known == dtype) return name;
  throw Error(ErrorCode::kRuntime, str("expected a DType, got ", static_cast<int>(dtype)));
}

// transformers allows one id or a list of them; the first is kept.
std::optional<int64_t> read_token_id(const Section& top, const std::string& key) {
  if (!top.has(key)) return std::nullopt;
  const Json& value = top.at(key);
  if (value.is_number_integer()) return value.get<int64_t>();
  if (!value.is_array() || value.empty() || !value[0].is_number_integer()) top.mistyped(key, "an integer");
  return value[0].get<int64_t>();
}

}  // namespace

HfConfig parse_hf_config(const std::string& text, const std::string& file_name) {
  Json json = parse_json(text, file_name);
  Section top(json, file_name);
  refuse_unsupported(top);
  HfConfig config;
  config.model = read_model(top);
  check_limits(config.model, file_name);
  config.bos_token_id = read_token_id(top, "bos_token_id");
  config.eos_token_id = read_token_id(top, "eos_token_id");
  config.dtype = read_dtype(top);
  return config;
}

HfConfig read_hf_config(const fs::path& path) {
  return parse_hf_config(read_text_file(path), path.native());
}

std::string hf_config_to_json(const HfConfig& config) {
  const ModelConfig& model = config.model;
  auto optional = [](const std::optional<int64_t>& value) { return value ? Json(*value) : Json(nullptr); };
  nlohmann::ordered_json json;
  json["architectures"] = {"LlamaForCausalLM"};
  json["model_type"] = "llama";
  json["vocab_size"] = model.vocab_size;
  json["hidden_size"] = model.hidden_size;
  json["intermediate_size"] = model.intermediate_size;
  json["num_hidden_layers"] = model.num_hidden_layers;
  json["num_attention_heads"] = model.num_attention_heads;
  json["num_key_value_heads"] = model.num_key_value_heads;
  json["head_dim"] = model.head_dim;
  json["max_position_embeddings"] = model.max_position_embeddings;
  json["hidden_act"] = "silu";
  json["rms_norm_eps"] = model.rms_norm_eps;
  json["initializer_range"] = model.initializer_range;
  json["tie_word_embeddings"] = model.tie_word_embeddings;
  json["attention_bias"] = false;
  json["attention_dropout"] = 0.0;
  json["mlp_bias"] = false;
  json["rope_theta"] = model.rope_theta;
  json["rope_scaling"] = nullptr;
  if (model.has_rope_scaling) {
    const RopeScaling& scaling = model.rope_scaling;
    json["rope_scaling"] = {{"rope_type", "llama3"},
                            {"factor", scaling.factor},
                            {"low_freq_factor", scaling.low_freq_factor},
                            {"high_freq_factor", scaling.high_freq_factor},
                            {"original_max_position_embeddings", std::llround(scaling.original_max_position)}};
  }
  json["bos_token_id"] = optional(config.bos_token_id);
  json["eos_token_id"] = optional(config.eos_token_id);
  json["torch_dtype"] = torch_name(config.dtype);
  json["use_cache"] = true;
  return json.dump(2) + "\n";
}

}  // namespace xce

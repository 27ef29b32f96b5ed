#include "src/io/hf_config.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "tests/support/errors.h"
#include "tests/support/temp_dir.h"

namespace xce {
namespace {

using Json = nlohmann::json;
using test::throws_error;

// Llama 3.2 1B as transformers 4 writes it.
Json llama_1b() {
  return Json::parse(R"({"architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
    "bos_token_id": 128000, "eos_token_id": [128001, 128008], "head_dim": 64, "hidden_act": "silu", "hidden_size": 2048,
    "initializer_range": 0.02, "intermediate_size": 8192, "max_position_embeddings": 131072, "mlp_bias": false,
    "model_type": "llama", "num_attention_heads": 32, "num_hidden_layers": 16, "num_key_value_heads": 8,
    "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_scaling": {"factor": 32.0, "high_freq_factor": 4.0,
    "low_freq_factor": 1.0, "original_max_position_embeddings": 8192, "rope_type": "llama3"}, "rope_theta": 500000.0,
    "tie_word_embeddings": true, "torch_dtype": "bfloat16", "transformers_version": "4.45.0.dev0",
    "use_cache": true, "vocab_size": 128256})");
}

HfConfig parse(const Json& json) {
  return parse_hf_config(json.dump(), "config.json");
}

void expect_llama_1b(const HfConfig& config) {
  const ModelConfig& model = config.model;
  EXPECT_EQ(model.vocab_size, 128256);
  EXPECT_EQ(model.hidden_size, 2048);
  EXPECT_EQ(model.intermediate_size, 8192);
  EXPECT_EQ(model.num_hidden_layers, 16);
  EXPECT_EQ(model.num_attention_heads, 32);
  EXPECT_EQ(model.num_key_value_heads, 8);
  EXPECT_EQ(model.head_dim, 64);
  EXPECT_EQ(model.max_position_embeddings, 131072);
  EXPECT_EQ(model.rms_norm_eps, 1e-5);
  EXPECT_EQ(model.rope_theta, 500000.0);
  EXPECT_EQ(model.initializer_range, 0.02);
  EXPECT_TRUE(model.tie_word_embeddings);
  EXPECT_TRUE(model.has_rope_scaling);
  EXPECT_EQ(model.rope_scaling.factor, 32.0);
  EXPECT_EQ(model.rope_scaling.low_freq_factor, 1.0);
  EXPECT_EQ(model.rope_scaling.high_freq_factor, 4.0);
  EXPECT_EQ(model.rope_scaling.original_max_position, 8192.0);
  EXPECT_EQ(config.dtype, DType::kBf16);
  EXPECT_EQ(config.bos_token_id, 128000);
  EXPECT_EQ(config.eos_token_id, 128001);
}

// Moves the rotary keys and the dtype to where transformers 5 writes them.
Json in_spelling_of_v5(Json json) {
  json["rope_parameters"] = json["rope_scaling"];
  json["rope_parameters"]["rope_theta"] = json["rope_theta"];
  json["dtype"] = json["torch_dtype"];
  for (const char* key : {"rope_scaling", "rope_theta", "torch_dtype"}) json.erase(key);
  return json;
}

TEST(HfConfig, ReadsBothSpellings) {
  expect_llama_1b(parse(llama_1b()));
  expect_llama_1b(parse(in_spelling_of_v5(llama_1b())));
  Json both = in_spelling_of_v5(llama_1b());
  both["rope_scaling"] = llama_1b()["rope_scaling"];
  both["rope_theta"] = 500000.0;
  expect_llama_1b(parse(both));
}

TEST(HfConfig, RoundTrip) {
  test::TempDir dir;
  HfConfig config = parse(llama_1b());
  test::write_file(dir / "config.json", hf_config_to_json(config));
  expect_llama_1b(read_hf_config(dir / "config.json"));
  config.model.has_rope_scaling = false;
  config.model.tie_word_embeddings = false;
  config.dtype = DType::kF32;
  config.bos_token_id.reset();
  HfConfig again = parse_hf_config(hf_config_to_json(config), "x");
  EXPECT_FALSE(again.model.has_rope_scaling);
  EXPECT_FALSE(again.model.tie_word_embeddings);
  EXPECT_EQ(again.dtype, DType::kF32);
  EXPECT_FALSE(again.bos_token_id.has_value());
  EXPECT_EQ(again.eos_token_id, 128001);
}

TEST(HfConfig, AbsentKeysHaveTheDefaultsOfTransformers) {
  HfConfig config = parse({{"model_type", "llama"},
                           {"vocab_size", 100},
                           {"hidden_size", 64},
                           {"intermediate_size", 96},
                           {"num_hidden_layers", 2},
                           {"num_attention_heads", 4},
                           {"num_key_value_heads", nullptr},
                           {"rope_scaling", nullptr}});
  EXPECT_EQ(config.model.num_key_value_heads, 4);
  EXPECT_EQ(config.model.head_dim, 16);
  EXPECT_EQ(config.model.max_position_embeddings, 2048);
  EXPECT_EQ(config.model.rms_norm_eps, 1e-6);
  EXPECT_EQ(config.model.rope_theta, 10000.0);
  EXPECT_EQ(config.model.initializer_range, 0.02);
  EXPECT_FALSE(config.model.tie_word_embeddings);
  EXPECT_FALSE(config.model.has_rope_scaling);
}

TEST(HfConfig, RefusesWhatItDoesNotTrain) {
  auto refused = [](const std::string& key, const Json& value) {
    Json json = llama_1b();
    json[key] = value;
    return throws_error(ErrorCode::kUsage, {"config.json", key, value.dump()}, [&] { parse(json); });
  };
  EXPECT_TRUE(refused("architectures", {"MistralForCausalLM"}));
  EXPECT_TRUE(refused("model_type", "qwen2"));
  EXPECT_TRUE(refused("hidden_act", "gelu"));
  EXPECT_TRUE(refused("attention_bias", true));
  EXPECT_TRUE(refused("mlp_bias", true));
  EXPECT_TRUE(refused("attention_dropout", 0.1));
  EXPECT_TRUE(refused("quantization_config", {{"bits", 4}}));
  EXPECT_TRUE(refused("torch_dtype", "int8"));
  EXPECT_TRUE(refused("head_dim", 63));
  for (const char* key : {"rope_type", "type"}) {
    Json json = llama_1b();
    json["rope_scaling"] = {{key, "yarn"}, {"factor", 2.0}};
    EXPECT_TRUE(throws_error(ErrorCode::kUsage, {"rope_scaling", key, "yarn"}, [&] { parse(json); }));
    json = in_spelling_of_v5(llama_1b());
    json["rope_parameters"]["rope_type"] = "linear";
    EXPECT_TRUE(throws_error(ErrorCode::kUsage, {"rope_parameters.rope_type", "linear"}, [&] { parse(json); }));
  }
}

TEST(HfConfig, RefusesWhatTheSettingsRefuse) {
  for (const char* key : {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
                          "head_dim", "max_position_embeddings"}) {
    Json json = llama_1b();
    json["num_key_value_heads"] = 1;
    json[key] = int64_t{1} << 40;
    EXPECT_TRUE(throws_error(ErrorCode::kUsage, {"config.json", key, "1099511627776"}, [&] { parse(json); }));
  }
  Json json = llama_1b();
  json["rms_norm_eps"] = 1e-46;
  EXPECT_TRUE(throws_error(ErrorCode::kUsage, {"rms_norm_eps", "1e-46", ">= 1e-30"}, [&] { parse(json); }));
  json = llama_1b();
  json["num_attention_heads"] = json["num_key_value_heads"] = int64_t{1} << 40;
  EXPECT_TRUE(throws_error(ErrorCode::kUsage, {"num_", "1099511627776"}, [&] { parse(json); }));
  for (Json spelling : {llama_1b(), in_spelling_of_v5(llama_1b())}) {
    const char* section = spelling.contains("rope_scaling") ? "rope_scaling" : "rope_parameters";
    spelling[section]["factor"] = 0.25;
    EXPECT_TRUE(throws_error(ErrorCode::kUsage, {"rope_scaling.factor", "0.25"}, [&] { parse(spelling); }));
  }
}

TEST(HfConfig, NamesMissingAndMistypedKeys) {
  for (const char* key :
       {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"}) {
    Json json = llama_1b();
    json.erase(key);
    EXPECT_TRUE(throws_error(ErrorCode::kCorrupt, {"config.json", std::string("no ") + key}, [&] { parse(json); }));
    for (Json value : {Json("12"), Json(1.5), Json(0), Json(-4)}) {
      json[key] = value;
      EXPECT_TRUE(throws_error(ErrorCode::kCorrupt, {key, value.dump()}, [&] { parse(json); })) << key << value;
    }
  }
  auto corrupt = [](const std::string& key, const Json& value, const std::string& word) {
    Json json = llama_1b();
    json[key] = value;
    return throws_error(ErrorCode::kCorrupt, {key, word}, [&] { parse(json); });
  };
  EXPECT_TRUE(corrupt("num_key_value_heads", 5, "divisor"));
  EXPECT_TRUE(corrupt("rms_norm_eps", 0, "positive"));
  EXPECT_TRUE(corrupt("tie_word_embeddings", "yes", "true or false"));
  EXPECT_TRUE(corrupt("rope_scaling", {{"rope_type", "llama3"}}, "factor"));
  EXPECT_TRUE(corrupt("rope_scaling", 3, "object"));
  EXPECT_TRUE(corrupt("bos_token_id", "x", "integer"));
  Json json = in_spelling_of_v5(llama_1b());
  json["rope_theta"] = 10000.0;
  EXPECT_TRUE(throws_error(ErrorCode::kCorrupt, {"rope_theta", "10000", "500000"}, [&] { parse(json); }));
  json = in_spelling_of_v5(llama_1b());
  json["rope_scaling"] = json["rope_parameters"];
  json["rope_scaling"]["factor"] = 8.0;
  EXPECT_TRUE(throws_error(ErrorCode::kCorrupt, {"rope_scaling"}, [&] { parse(json); }));
  EXPECT_TRUE(throws_error(ErrorCode::kCorrupt, {"no model_type"}, [&] { parse(Json::object()); }));
}

}  // namespace
}  // namespace xce

#include "src/model/llama_io.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "kernels/base/check.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"

namespace xce {
namespace {

using test::tiny_config;
using test::TinyModel;
using Doubles = std::vector<double>;

class LlamaIoTest : public ::testing::Test {
 protected:
  test::TempDir dir_;
  std::filesystem::path path() const { return dir_.path() / "export"; }

  static Doubles compute(TinyModel& tiny) {
    return test::TapeRig::read(tiny.parameters.compute(), tiny.parameters.dtype(), tiny.parameters.size());
  }
  // The message of the error that loading `path` into a model of this config gives; empty: none.
  std::string load_error(const ModelConfig& config) {
    TinyModel into(DType::kF32, config, 7, 2);
    Doubles before = into.masters();
    try {
      load_llama(HfDirectory(path()), into.model, into.parameters, test::cpu_exec(1));
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::kUsage) << e.what();
      EXPECT_EQ(into.masters(), before) << "a refused model changes nothing";
      return e.what();
    }
    return "";
  }
};

TEST_F(LlamaIoTest, SavedAndLoadedAreTheSameBits) {
  for (DType dtype : {DType::kF32, DType::kBf16, DType::kF64})
    for (bool tied : {false, true}) {
      SCOPED_TRACE(std::string(name_of(dtype)) + (tied ? " tied" : " untied"));
      TinyModel from(dtype, tiny_config(tied), 7, 1), to(dtype, tiny_config(tied), 7, 2);
      EXPECT_NE(compute(from), compute(to));
      save_llama(path(), from.model, from.parameters);
      load_llama(HfDirectory(path()), to.model, to.parameters, test::cpu_exec(2));
      EXPECT_EQ(compute(to), compute(from));
      EXPECT_EQ(to.masters(), compute(from)) << "what was saved is the rounded weights";
      test::Batch batch = test::random_batch(14, 31, 4);
      EXPECT_EQ(to.loss(batch, test::cpu_exec(2)), from.loss(batch, test::cpu_exec(2)));
    }
}

TEST_F(LlamaIoTest, FusedProjectionsAreSplitByName) {
  TinyModel tiny(DType::kF32, tiny_config(false, 1), 7);
  save_llama(path(), tiny.model, tiny.parameters);
  HfDirectory saved(path());
  auto stored = [&](const std::string& name, int64_t n) {
    Doubles out(static_cast<size_t>(n));
    saved.read(name, DType::kF64, out.data());
    return out;
  };
  auto fused = [&](const std::string& name) -> Doubles {
    for (const Parameter& p : tiny.parameters.list())
      if (p.name == name) return test::TapeRig::read(tiny.parameters.master(p.offset), DType::kF32, p.size());
    ADD_FAILURE() << name;
    return {};
  };
  auto joined = [](std::vector<Doubles> parts) {
    Doubles all;
    for (const Doubles& part : parts) all.insert(all.end(), part.begin(), part.end());
    return all;
  };
  const std::string at = "model.layers.0.";
  EXPECT_EQ(joined({stored(at + "self_attn.q_proj.weight", 192), stored(at + "self_attn.k_proj.weight", 96),
                    stored(at + "self_attn.v_proj.weight", 96)}),
            fused(at + "self_attn.qkv_proj"));
  EXPECT_EQ(joined({stored(at + "mlp.gate_proj.weight", 240), stored(at + "mlp.up_proj.weight", 240)}),
            fused(at + "mlp.gate_up_proj"));
}

TEST_F(LlamaIoTest, TheHeadOfATiedModelIsNotStoredTwice) {
  for (bool tied : {false, true}) {
    TinyModel tiny(DType::kF32, tiny_config(tied), 7);
    save_llama(path(), tiny.model, tiny.parameters);
    EXPECT_EQ(HfDirectory(path()).has("lm_head.weight"), !tied);
  }
}

TEST_F(LlamaIoTest, LoadingConvertsBetweenPrecisions) {
  TinyModel from(DType::kBf16, tiny_config(true), 7, 1), to(DType::kF32, tiny_config(true), 7, 2);
  save_llama(path(), from.model, from.parameters);
  load_llama(HfDirectory(path()), to.model, to.parameters, test::cpu_exec(1));
  EXPECT_EQ(to.masters(), compute(from));
}

TEST_F(LlamaIoTest, AnotherModelIsRefusedByTheKeyThatDiffers) {
  TinyModel tiny(DType::kF32, tiny_config(false), 7);
  save_llama(path(), tiny.model, tiny.parameters);
  EXPECT_EQ(load_error(tiny_config(false)), "");
  struct Change {
    const char* key;
    void (*apply)(ModelConfig&);
  };
  const Change changes[] = {
      {"vocab_size", [](ModelConfig& c) { c.vocab_size = 32; }},
      {"hidden_size", [](ModelConfig& c) { c.hidden_size = 16; }},
      {"intermediate_size", [](ModelConfig& c) { c.intermediate_size = 24; }},
      {"num_hidden_layers", [](ModelConfig& c) { c.num_hidden_layers = 3; }},
      {"num_attention_heads", [](ModelConfig& c) { c.num_attention_heads = 8; }},
      {"num_key_value_heads", [](ModelConfig& c) { c.num_key_value_heads = 4; }},
      {"head_dim", [](ModelConfig& c) { c.head_dim = 8; }},
      {"rms_norm_eps", [](ModelConfig& c) { c.rms_norm_eps = 1e-6; }},
      {"rope_theta", [](ModelConfig& c) { c.rope_theta = 500000; }},
      {"tie_word_embeddings", [](ModelConfig& c) { c.tie_word_embeddings = true; }},
      {"rope_scaling", [](ModelConfig& c) { c.has_rope_scaling = true; }},
  };
  for (const Change& change : changes) {
    ModelConfig config = tiny_config(false);
    change.apply(config);
    std::string message = load_error(config);
    EXPECT_NE(message.find(change.key), std::string::npos) << change.key << ": " << message;
    EXPECT_NE(message.find("config.json"), std::string::npos) << message;
  }
}

TEST_F(LlamaIoTest, RopeScalingIsPartOfTheModel) {
  ModelConfig scaled = tiny_config(false);
  scaled.has_rope_scaling = true;
  scaled.rope_scaling = {.factor = 8, .low_freq_factor = 1, .high_freq_factor = 4, .original_max_position = 8};
  TinyModel tiny(DType::kF32, scaled, 7);
  save_llama(path(), tiny.model, tiny.parameters);
  EXPECT_EQ(load_error(scaled), "");
  ModelConfig other = scaled;
  other.rope_scaling.factor = 4;
  EXPECT_NE(load_error(other).find("rope_scaling.factor"), std::string::npos);
}

}  // namespace
}  // namespace xce

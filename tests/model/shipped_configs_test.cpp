// The files of configs/: each one parses, and the models are those that their comments and names promise.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>

#include "src/core/config.h"
#include "src/model/llama.h"

namespace xce {
namespace {

namespace fs = std::filesystem;

const fs::path kConfigs = fs::path(__FILE__).parent_path() / "../../configs";

// A build without CUDA refuses run.device cuda, and a fixed number of threads makes the same demands everywhere.
Config load(const std::string& name, std::vector<std::string> overrides = {}) {
  overrides.insert(overrides.end(), {"run.device=cpu", "run.threads=2"});
  return load_config((kConfigs / (name + ".yaml")).string(), overrides);
}

int64_t parameters(const Config& config) {
  ParameterSet set(config.train.precision);
  Llama model(config.model, set);
  return set.count();
}

// 705152 -> 705,152
std::string grouped(int64_t n) {
  std::string digits = std::to_string(n);
  for (auto at = static_cast<int64_t>(digits.size()) - 3; at > 0; at -= 3)
    digits.insert(static_cast<size_t>(at), 1, ',');
  return digits;
}

// What a person computes from the shape: attention, SwiGLU and two norms a layer, the embedding, the last norm, the
// head.
int64_t expected_parameters(const ModelConfig& m) {
  int64_t attention = m.hidden_size * m.head_dim * 2 * (m.num_attention_heads + m.num_key_value_heads);
  int64_t layer = attention + 3 * m.hidden_size * m.intermediate_size + 2 * m.hidden_size;
  int64_t embeddings = m.tie_word_embeddings ? 1 : 2;
  return m.num_hidden_layers * layer + embeddings * m.vocab_size * m.hidden_size + m.hidden_size;
}

TEST(ShippedConfigs, EveryFileParsesAndItsModelHasThePublishedSize) {
  const std::map<std::string, int64_t> known = {
      {"demo-cpu", 705408}, {"llama-128k", 1241581568}, {"gpt2-124m-size", 123587328}, {"llama-8b", 8030261248}};
  size_t found = 0;
  for (const auto& entry : fs::directory_iterator(kConfigs)) {
    if (entry.path().extension() != ".yaml") continue;
    std::string name = entry.path().stem().string();
    SCOPED_TRACE(name);
    Config config = load(name);
    ASSERT_TRUE(known.contains(name)) << "tell its size here";
    EXPECT_EQ(parameters(config), known.at(name));
    EXPECT_EQ(parameters(config), expected_parameters(config.model));
    EXPECT_EQ(config.run.dir, "runs/" + (name == "demo-cpu" ? "demo" : name));
    ++found;
    if (name == "demo-cpu") continue;
    std::ifstream stream(entry.path());
    std::string text{std::istreambuf_iterator<char>(stream), {}};
    EXPECT_NE(text.find(grouped(known.at(name)) + " parameters"), std::string::npos) << "the comment says another size";
    EXPECT_NE(text.find("device: cuda"), std::string::npos);
  }
  EXPECT_EQ(found, known.size());
}

TEST(ShippedConfigs, TheDemoReadsTheTextThatItsToolFetches) {
  Config config = load("demo-cpu");
  EXPECT_EQ(config.model.vocab_size, 256);
  EXPECT_EQ(config.model.head_dim, 32);
  EXPECT_EQ(config.data.train, "data/bible.txt");
}

TEST(ShippedConfigs, TheVocabularyOfLlama3GivesTheSizeOfLlama32) {
  Config config = load("llama-128k",
                       {"data.kind=synthetic", "data.train=", "data.val=", "eval.every=0", "model.vocab_size=128256"});
  EXPECT_EQ(parameters(config), 1235814400);
}

TEST(ShippedConfigs, OtherDataAsTheCommentsSay) {
  EXPECT_EQ(load("gpt2-124m-size", {"data.kind=tokens", "data.train=data/tokens/train.tok",
                                    "data.val=data/tokens/val.tok", "model.vocab_size=131072"})
                .data.kind,
            DataKind::kTokens);
  EXPECT_EQ(load("gpt2-124m-size",
                 {"data.kind=bytes", "data.train=data/bible.txt", "data.val_fraction=0.1", "model.vocab_size=256"})
                .data.kind,
            DataKind::kBytes);
  // The default training data of tools/prepare_data.sh is not seen twice.
  Config config = load("llama-128k");
  EXPECT_LE(config.train.steps * config.train.global_batch * config.train.seq_len, 10000000);
}

}  // namespace
}  // namespace xce

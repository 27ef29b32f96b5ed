#include "src/io/hf_directory.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/support/errors.h"
#include "tests/support/temp_dir.h"

namespace xce {
namespace {

using test::throws_error;

HfConfig small_config() {
  HfConfig config;
  config.model.vocab_size = 5;
  config.model.hidden_size = config.model.head_dim = 2;
  config.model.intermediate_size = 4;
  config.model.num_hidden_layers = config.model.num_attention_heads = config.model.num_key_value_heads = 1;
  return config;
}

const std::vector<float> kEmbed = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
const std::vector<float> kNorm = {0.5f, -2.f};

TensorToWrite tensor(const std::string& name, const std::vector<int64_t>& shape, const std::vector<float>& values) {
  return {.name = name, .shape = shape, .data = values.data()};
}
TensorToWrite embed() {
  return tensor("model.embed_tokens.weight", {5, 2}, kEmbed);
}
TensorToWrite norm() {
  return tensor("model.norm.weight", {2}, kNorm);
}
const std::vector<ExpectedTensor> kExpected = {{"model.embed_tokens.weight", {5, 2}, ""},
                                               {"model.norm.weight", {2}, ""},
                                               {"lm_head.weight", {5, 2}, "model.embed_tokens.weight"}};

void expect_contents(const HfDirectory& model) {
  model.check(kExpected);
  EXPECT_EQ(model.config().model.vocab_size, 5);
  std::vector<double> got(10, -1), norm_got(1, -1);
  model.read("model.embed_tokens.weight", DType::kF64, got.data());
  EXPECT_EQ(got, std::vector<double>(kEmbed.begin(), kEmbed.end()));
  model.read("model.norm.weight", 1, 1, DType::kF64, norm_got.data());
  EXPECT_EQ(norm_got[0], -2.0);
}

TEST(HfDirectory, RoundTrip) {
  test::TempDir dir;
  write_hf_directory(dir / "out/model", small_config(), {embed(), norm()});
  expect_contents(HfDirectory(dir / "out/model"));
  EXPECT_EQ(test::count_entries(dir / "out/model"), 2u);
  write_hf_directory(dir / "out/model", small_config(), {norm(), embed()});  // over the older one
  expect_contents(HfDirectory(dir / "out/model"));
}

TEST(HfDirectory, ReadsShards) {
  test::TempDir dir;
  test::write_file(dir / "config.json", hf_config_to_json(small_config()));
  write_safetensors(dir / "m-1.safetensors", {embed()});
  write_safetensors(dir / "m-2.safetensors", {norm()});
  nlohmann::json index = {
      {"metadata", {{"total_size", 48}}},
      {"weight_map", {{"model.embed_tokens.weight", "m-1.safetensors"}, {"model.norm.weight", "m-2.safetensors"}}}};
  auto write_index = [&](const nlohmann::json& json) {
    test::write_file(dir / "model.safetensors.index.json", json.dump());
  };
  write_index(index);
  expect_contents(HfDirectory(dir.path()));
  auto refused = [&](const std::string& name, const nlohmann::json& file, const std::string& word) {
    nlohmann::json bad = index;
    bad["weight_map"][name] = file;
    write_index(bad);
    return throws_error(ErrorCode::kCorrupt, {"index.json", word}, [&] { HfDirectory model(dir.path()); });
  };
  EXPECT_TRUE(refused("x", "m-1.safetensors", "m-1.safetensors has no tensor x"));
  EXPECT_TRUE(refused("x", "m-3.safetensors", "m-3.safetensors is not there"));
  EXPECT_TRUE(refused("x", "../m-1.safetensors", "expected a file name"));
  EXPECT_TRUE(refused("x", 4, "x is not a string"));
  index["weight_map"].erase("model.norm.weight");
  write_safetensors(dir / "m-1.safetensors", {embed(), norm()});
  write_index(index);
  EXPECT_TRUE(throws_error(ErrorCode::kCorrupt, {"m-1.safetensors", "model.norm.weight is not in the index"},
                           [&] { HfDirectory model(dir.path()); }));
}

TEST(HfDirectory, CheckNamesEveryProblem) {
  test::TempDir dir;
  auto refused = [&](const std::vector<TensorToWrite>& tensors, const std::vector<std::string>& words) {
    write_hf_directory(dir.path(), small_config(), tensors);
    HfDirectory model(dir.path());
    return throws_error(ErrorCode::kCorrupt, words, [&] { model.check(kExpected); });
  };
  std::vector<float> other = kEmbed;
  other[9] = -9;
  EXPECT_TRUE(refused({embed()}, {"missing model.norm.weight [2]"}));
  EXPECT_TRUE(refused({embed(), norm(), tensor("a.bias", {2}, kNorm)}, {"unexpected a.bias"}));
  EXPECT_TRUE(refused({tensor("model.embed_tokens.weight", {2, 5}, kEmbed), norm()},
                      {"model.embed_tokens.weight", "[2, 5]", "[5, 2]"}));
  EXPECT_TRUE(refused({embed(), norm(), tensor("lm_head.weight", {5, 2}, other)}, {"lm_head.weight differs", "ties"}));
  EXPECT_TRUE(refused({tensor("a.bias", {2}, kNorm)},
                      {"missing model.norm.weight", "missing model.embed", "unexpected a.bias"}));
}

TEST(HfDirectory, CheckAllowsACopyOfATiedHeadAndOldBuffers) {
  test::TempDir dir;
  write_hf_directory(dir.path(), small_config(),
                     {embed(), norm(), tensor("lm_head.weight", {5, 2}, kEmbed),
                      tensor("model.layers.0.self_attn.rotary_emb.inv_freq", {2}, kNorm)});
  HfDirectory(dir.path()).check(kExpected);
  EXPECT_EQ(HfDirectory(dir.path()).names().size(), 4u);
}

TEST(HfDirectory, MissingFiles) {
  test::TempDir dir;
  EXPECT_TRUE(throws_error(ErrorCode::kUsage, {"none/config.json"}, [&] { HfDirectory model(dir / "none"); }));
  test::write_file(dir / "config.json", hf_config_to_json(small_config()));
  EXPECT_TRUE(throws_error(ErrorCode::kUsage, {dir.path().native(), "model.safetensors"},
                           [&] { HfDirectory model(dir.path()); }));
  write_hf_directory(dir.path(), small_config(), {norm()});
  float out[2];
  EXPECT_TRUE(
      throws_error(ErrorCode::kCorrupt, {"no tensor x"}, [&] { HfDirectory(dir.path()).read("x", DType::kF32, out); }));
}

}  // namespace
}  // namespace xce

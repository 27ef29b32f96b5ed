// Values that each look right but with which a run would fail or give no numbers: refused by key before anything
// starts.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "src/core/config.h"

namespace xce {
namespace {

const std::string kBase =
    "run: {dir: runs/demo}\n"
    "model: {hidden_size: 128, intermediate_size: 384, num_hidden_layers: 3, num_attention_heads: 4}\n"
    "data: {train: bible.txt, val_fraction: 0.1}\n"
    "train: {steps: 1500, seq_len: 64}\n";

std::string error_of(const std::vector<std::string>& words) {
  try {
    parse_config(kBase, "c.yaml", words);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUsage);
    return error.what();
  }
  return "accepted";
}

TEST(ConfigCheckTest, EpsThatSinglePrecisionRoundsToZeroIsRefused) {
  for (const char* key : {"optim.eps", "model.rms_norm_eps"}) {
    for (const char* value : {"0", "1e-320", "1e-46", "9e-31"}) {
      std::string word = str(key, "=", value);
      EXPECT_EQ(error_of({word}),
                str("command line '", word, "': ", key, ": expected a number >= 1e-30, got '", value, "'"));
    }
    EXPECT_EQ(error_of({str(key, "=1e-30")}), "accepted");
  }
}

TEST(ConfigCheckTest, SizesWhoseProductsLeave64BitsAreRefused) {
  EXPECT_EQ(error_of({"train.micro_batch=16777216", "train.global_batch=16777216", "train.seq_len=256"}),
            "command line 'train.micro_batch=16777216': train.micro_batch: 16777216 sequences of train.seq_len 256 are "
            "more than 2147483647 tokens at a time");
  EXPECT_EQ(error_of({"model.head_dim=8388608"}),
            "c.yaml:2:94: model.num_attention_heads: 4 heads of model.head_dim 8388608 are wider than 16777216");
  EXPECT_EQ(error_of({"model.head_dim=4194304", "run.threads=1"}), "accepted");
}

TEST(ConfigCheckTest, ALossWorkspaceBelowTheLeastIsRefused) {
  std::vector<std::string> words = {"model.hidden_size=16777216", "run.threads=2"};
  std::string refused = error_of(words);
  EXPECT_NE(refused.find("c.yaml: loss.workspace_mib: 64 MiB are too few for model.hidden_size 16777216"),
            std::string::npos)
      << refused;
  words.push_back("loss.workspace_mib=" + refused.substr(refused.rfind(' ') + 1));
  EXPECT_EQ(error_of(words), "accepted");
  EXPECT_EQ(error_of({"loss.workspace_mib=1", "run.threads=2"}), "accepted");
}

TEST(ConfigCheckTest, AMarkovChainHasAtLeastFourStates) {
  std::vector<std::string> words = {"data.kind=markov", "data.train=", "data.markov_states=3"};
  EXPECT_EQ(error_of(words),
            "command line 'data.markov_states=3': data.markov_states: expected a whole number "
            ">= 4 and <= 65536, got '3'");
  words[2] = "data.markov_states=4";
  EXPECT_EQ(error_of(words), "accepted");
}

}  // namespace
}  // namespace xce

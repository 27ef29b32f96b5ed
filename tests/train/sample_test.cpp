#include "src/train/sample.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/base/check.h"
#include "tests/support/tiny_model.h"

namespace xce {
namespace {

using test::TinyModel;
using Ids = std::vector<int32_t>;

constexpr int64_t kSeqLen = 7, kVocab = 31, kHidden = 12;

// Logits after `text` (at most a window of it), from the head's rows and the hidden states.
std::vector<double> next_logits(TinyModel& tiny, const Ids& text) {
  Ids window(text.end() - std::min<int64_t>(kSeqLen, static_cast<int64_t>(text.size())), text.end());
  size_t last = window.size() - 1;
  window.resize(kSeqLen, 30);  // what comes after the last token must not matter
  std::vector<double> h = tiny.hidden(window, test::cpu_exec(1)), logits;
  const Parameter& head = tiny.parameters.list().front();  // tied
  std::vector<double> weight =
      test::TapeRig::read(tiny.parameters.compute(head.offset), tiny.parameters.dtype(), head.size());
  for (int64_t v = 0; v < kVocab; ++v) {
    double z = 0;
    for (int64_t i = 0; i < kHidden; ++i) z += h[last * kHidden + i] * weight[v * kHidden + i];
    logits.push_back(z);
  }
  return logits;
}

class SampleTest : public ::testing::Test {
 protected:
  TinyModel tiny{DType::kF64, test::tiny_config(true), kSeqLen};
  Ids run(const Ids& prompt, const SampleOptions& options) {
    return sample(tiny.model, tiny.parameters, test::cpu_device(1), prompt, options);
  }
};

TEST_F(SampleTest, WithoutTemperatureTheLikeliestTokenFollows) {
  Ids want = {4, 9};
  for (int i = 0; i < 12; ++i) {  // past the end of the window
    std::vector<double> logits = next_logits(tiny, want);
    want.push_back(static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin()));
  }
  for (uint64_t seed : {1, 2})
    EXPECT_EQ(run({4, 9}, {.count = 12, .seq_len = kSeqLen, .temperature = 0, .seed = seed}), want);
}

TEST_F(SampleTest, TheSeedDecidesTheText) {
  SampleOptions options{.count = 20, .seq_len = kSeqLen, .temperature = 1, .seed = 3};
  Ids text = run({4}, options);
  ASSERT_EQ(text.size(), 21u);
  EXPECT_EQ(text[0], 4);
  for (int32_t id : text) EXPECT_TRUE(id >= 0 && id < kVocab);
  EXPECT_EQ(run({4}, options), text);
  options.seed = 4;
  EXPECT_NE(run({4}, options), text);
}

TEST_F(SampleTest, TokensFollowTheSoftmaxAtTheTemperature) {
  for (double temperature : {0.5, 2.0}) {
    std::vector<double> p = next_logits(tiny, {4, 9});
    double top = *std::max_element(p.begin(), p.end()), sum = 0;
    for (double& z : p) sum += z = std::exp((z - top) / temperature);
    const int draws = 3000;
    std::vector<int> seen(kVocab, 0);
    for (int i = 0; i < draws; ++i) {
      SampleOptions options{
          .count = 1, .seq_len = kSeqLen, .temperature = temperature, .seed = static_cast<uint64_t>(i)};
      ++seen[static_cast<size_t>(run({4, 9}, options).back())];
    }
    for (size_t v = 0; v < p.size(); ++v) {
      double want = p[v] / sum;
      EXPECT_NEAR(static_cast<double>(seen[v]) / draws, want, 5 * std::sqrt(want * (1 - want) / draws) + 1e-3) << v;
    }
  }
}

TEST_F(SampleTest, ALongPromptKeepsItsWholeText) {
  Ids prompt;
  for (int32_t i = 0; i < 30; ++i) prompt.push_back(i);
  Ids text = run(prompt, {.count = 1, .seq_len = kSeqLen, .temperature = 0, .seed = 0});
  ASSERT_EQ(text.size(), 31u);
  EXPECT_TRUE(std::equal(prompt.begin(), prompt.end(), text.begin()));
  std::vector<double> logits = next_logits(tiny, prompt);
  EXPECT_EQ(text.back(), std::max_element(logits.begin(), logits.end()) - logits.begin());
  EXPECT_EQ(run(prompt, {.count = 0, .seq_len = kSeqLen, .temperature = 0, .seed = 0}), prompt);
}

TEST_F(SampleTest, MisuseThrows) {
  SampleOptions options{.count = 1, .seq_len = kSeqLen, .temperature = 1, .seed = 0};
  EXPECT_THROW(run({}, options), Error);
  for (int32_t id : {-1, 31}) {
    try {
      run({1, id}, options);
      ADD_FAILURE() << id;
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::kUsage);
    }
  }
  for (SampleOptions wrong :
       {SampleOptions{.count = 1, .seq_len = 0}, SampleOptions{.count = 1, .seq_len = kSeqLen + 1},
        SampleOptions{.count = 1, .seq_len = kSeqLen, .temperature = -1},
        SampleOptions{.count = 1, .seq_len = kSeqLen, .temperature = NAN}})
    EXPECT_THROW(run({1}, wrong), Error) << wrong.seq_len << " " << wrong.temperature;
}

}  // namespace
}  // namespace xce

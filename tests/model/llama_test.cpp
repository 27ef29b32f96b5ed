// The whole model: gradients against difference quotients in fp64, names and shapes of Hugging Face, invariances.
#include "src/model/llama.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "kernels/base/check.h"
#include "tests/support/tiny_model.h"

namespace xce {
namespace {

using test::Batch;
using test::tiny_config;
using test::TinyModel;
using Doubles = std::vector<double>;

constexpr int64_t kSeqLen = 7;

Batch two_sequences() {
  return test::random_batch(2 * kSeqLen, 31, 5);
}

// The four-point difference quotient of the loss for the elements [begin, end), every `stride`-th.
Doubles quotients(TinyModel& tiny, const Batch& batch, int64_t begin, int64_t end, int64_t stride, double z_loss) {
  const double h = 2e-4;
  Doubles out;
  for (int64_t e = begin; e < end; e += stride) {
    double middle = test::TapeRig::read(tiny.parameters.master(e), DType::kF64, 1)[0];
    auto at = [&](double step) {
      tiny.set_master(e, middle + step);
      return tiny.loss(batch, test::cpu_exec(1), {.backward = false, .terms = {.z_loss = z_loss}});
    };
    out.push_back((8 * (at(h) - at(-h)) - (at(2 * h) - at(-2 * h))) / (12 * h));
    tiny.set_master(e, middle);
  }
  return out;
}

bool agrees(const Doubles& analytic, const Doubles& numeric) {
  return test::relative_l2(analytic, numeric) <= 1e-7;
}

void check_gradients(bool tied, double z_loss) {
  TinyModel tiny(DType::kF64, tiny_config(tied), kSeqLen);
  Batch batch = two_sequences();
  tiny.loss(batch, test::cpu_exec(3), {.terms = {.z_loss = z_loss}});
  Doubles gradients = tiny.gradients();
  for (const Parameter& p : tiny.parameters.list()) {
    const int64_t stride = p.size() > 300 ? 5 : p.size() > 100 ? 3 : 1;
    Doubles numeric = quotients(tiny, batch, p.offset, p.offset + p.size(), stride, z_loss), analytic;
    for (int64_t e = 0; e < p.size(); e += stride) analytic.push_back(gradients[static_cast<size_t>(p.offset + e)]);
    EXPECT_TRUE(agrees(analytic, numeric)) << p.name << ": relative error " << test::relative_l2(analytic, numeric);
    // The comparison has teeth: it refuses a gradient that is missing, turned round, or wrong in one element.
    EXPECT_FALSE(agrees(Doubles(numeric.size(), 0.0), numeric)) << p.name;
    Doubles turned = analytic, off = analytic;
    for (double& g : turned) g = -g;
    EXPECT_FALSE(agrees(turned, numeric)) << p.name;
    auto largest =
        std::max_element(off.begin(), off.end(), [](double a, double b) { return std::fabs(a) < std::fabs(b); });
    *largest = -*largest;
    EXPECT_FALSE(agrees(off, numeric)) << p.name;
  }
}

TEST(LlamaGradients, AgreeWithDifferenceQuotientsUntied) {
  check_gradients(false, 0);
}
TEST(LlamaGradients, AgreeWithDifferenceQuotientsTied) {
  check_gradients(true, 0);
}
TEST(LlamaGradients, AgreeWithDifferenceQuotientsWithZLoss) {
  check_gradients(true, 0.1);
}

TEST(LlamaGradients, LowerPrecisionsAgreeWithFp64) {
  for (DType dtype : {DType::kF32, DType::kBf16}) {
    TinyModel low(dtype, tiny_config(true), kSeqLen), reference(DType::kF64, tiny_config(true), kSeqLen);
    Doubles rounded = test::TapeRig::read(low.parameters.compute(), dtype, low.parameters.size());
    test::TapeRig::write(reference.parameters.master(), DType::kF64, rounded, false);
    double want = reference.loss(two_sequences(), test::cpu_exec(1)),
           got = low.loss(two_sequences(), test::cpu_exec(3));
    double bar = dtype == DType::kF32 ? 1e-5 : 0.05;
    EXPECT_NEAR(got, want, bar * want) << name_of(dtype);
    EXPECT_LE(test::relative_l2(low.gradients(), reference.gradients()), bar) << name_of(dtype);
  }
}

class LlamaInvariance : public ::testing::TestWithParam<DType> {};

TEST_P(LlamaInvariance, RecomputedBlocksGiveTheSameBitsInLessMemory) {
  TinyModel tiny(GetParam(), tiny_config(false, 4), kSeqLen);
  size_t kept_peak = 0, peak = 0;
  double kept_loss = tiny.loss(two_sequences(), test::cpu_exec(3), {}, &kept_peak);
  Doubles kept = tiny.gradients();
  for (bool poison : {false, true}) {
    EXPECT_EQ(tiny.loss(two_sequences(), test::cpu_exec(3), {.recompute = true, .poison = poison}, &peak), kept_loss);
    EXPECT_EQ(tiny.gradients(), kept);
  }
  EXPECT_LT(peak, kept_peak);
}

TEST_P(LlamaInvariance, ReadsNothingThatWasNotWritten) {
  TinyModel tiny(GetParam(), tiny_config(true), kSeqLen);
  double clean_loss = tiny.loss(two_sequences(), test::cpu_exec(3));
  Doubles clean = tiny.gradients();
  EXPECT_EQ(tiny.loss(two_sequences(), test::cpu_exec(3), {.poison = true}), clean_loss);
  EXPECT_EQ(tiny.gradients(), clean);
}

TEST_P(LlamaInvariance, TheForwardAloneGivesTheLossOfTheStep) {
  TinyModel tiny(GetParam(), tiny_config(true), kSeqLen);
  double with_backward = tiny.loss(two_sequences(), test::cpu_exec(2), {.terms = {.z_loss = 0.1}});
  double alone = tiny.loss(two_sequences(), test::cpu_exec(2), {.backward = false, .terms = {.z_loss = 0.1}});
  EXPECT_NEAR(alone, with_backward, 1e-6 * with_backward);
}

TEST_P(LlamaInvariance, APositionSeesItsPastAlone) {
  TinyModel tiny(GetParam(), tiny_config(false), kSeqLen);
  std::vector<int32_t> tokens = two_sequences().tokens;
  Doubles before = tiny.hidden(tokens, test::cpu_exec(3));
  ASSERT_EQ(before.size(), tokens.size() * 12);
  for (size_t changed = 0; changed < tokens.size(); ++changed) {
    std::vector<int32_t> other = tokens;
    other[changed] = (other[changed] + 1) % 31;
    Doubles after = tiny.hidden(other, test::cpu_exec(3));
    for (size_t row = 0; row < tokens.size(); ++row) {
      bool same = std::equal(&before[row * 12], &before[row * 12] + 12, &after[row * 12]);
      bool sees = row / kSeqLen == changed / kSeqLen && row >= changed;
      EXPECT_EQ(same, !sees) << "token " << changed << " changed, row " << row;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(DTypes, LlamaInvariance, ::testing::Values(DType::kF32, DType::kBf16, DType::kF64),
                         [](const auto& info) { return std::string(name_of(info.param)); });

TEST(Llama, PositionsMatter) {
  TinyModel tiny(DType::kF64, tiny_config(false), kSeqLen);
  Doubles a = tiny.hidden({3, 5, 7, 9, 1, 2, 8}, test::cpu_exec(1)),
          b = tiny.hidden({5, 3, 7, 9, 1, 2, 8}, test::cpu_exec(1));
  EXPECT_GT(test::relative_l2(Doubles(a.end() - 12, a.end()), Doubles(b.end() - 12, b.end())), 1e-6)
      << "the last position tells the order of the first two";
}

TEST(Llama, NamesAndShapesAreHuggingFaces) {
  ParameterSet parameters(DType::kF32);
  Llama model(tiny_config(false, 1), parameters);
  std::map<std::string, std::vector<int64_t>> want = {
      {"model.embed_tokens.weight", {31, 12}},
      {"model.layers.0.input_layernorm.weight", {12}},
      {"model.layers.0.self_attn.q_proj.weight", {16, 12}},
      {"model.layers.0.self_attn.k_proj.weight", {8, 12}},
      {"model.layers.0.self_attn.v_proj.weight", {8, 12}},
      {"model.layers.0.self_attn.o_proj.weight", {12, 16}},
      {"model.layers.0.post_attention_layernorm.weight", {12}},
      {"model.layers.0.mlp.gate_proj.weight", {20, 12}},
      {"model.layers.0.mlp.up_proj.weight", {20, 12}},
      {"model.layers.0.mlp.down_proj.weight", {12, 20}},
      {"model.norm.weight", {12}},
      {"lm_head.weight", {31, 12}},
  };
  std::map<std::string, std::vector<int64_t>> got;
  for (const NamedSlice& s : model.named_slices()) got[s.name] = s.shape;
  EXPECT_EQ(got, want);
  EXPECT_EQ(model.named_slices().size(), want.size());
}

TEST(Llama, SlicesTileTheParametersOnce) {
  for (bool tied : {false, true}) {
    ParameterSet parameters(DType::kF32);
    Llama model(tiny_config(tied), parameters);
    std::vector<int> owners(static_cast<size_t>(parameters.size()), 0);
    for (const NamedSlice& s : model.named_slices()) {
      const Parameter& p = parameters[s.parameter];
      int64_t rows = s.shape.size() == 1 ? 1 : s.shape[0];
      EXPECT_EQ(s.shape.back(), p.cols);
      for (int64_t i = 0; i < rows * p.cols; ++i) ++owners[static_cast<size_t>(p.offset + s.row_begin * p.cols + i)];
      EXPECT_TRUE(!tied || s.name != "lm_head.weight");
    }
    for (const Parameter& p : parameters.list())
      for (int64_t i = 0; i < p.size(); ++i) ASSERT_EQ(owners[static_cast<size_t>(p.offset + i)], 1) << p.name;
  }
}

TEST(Llama, UnitsAreEmbeddingBlocksAndHead) {
  ParameterSet parameters(DType::kF32);
  Llama model(tiny_config(false, 3), parameters);
  EXPECT_EQ(model.unit_count(), 5);
  for (const Parameter& p : parameters.list()) {
    int want = p.name.find("embed") != std::string::npos ? 0
               : p.name.rfind("model.layers.", 0) == 0   ? p.name[13] - '0' + 1
                                                         : 4;
    EXPECT_EQ(p.unit, want) << p.name;
    EXPECT_EQ(p.init_stddev, p.name.find("norm") == std::string::npos ? 0.3 : 0) << p.name;
    EXPECT_EQ(p.matrix(), p.name.find("norm") == std::string::npos) << p.name;
  }
}

TEST(Llama, FlopsOfATokenByHand) {
  for (bool tied : {false, true}) {  // a tied head is multiplied all the same
    ParameterSet parameters(DType::kF32);
    Llama model(tiny_config(tied), parameters);
    double block = 12 * 16 + 2 * 12 * 8 + 16 * 12 + 3 * 12 * 20;
    // A query meets half of the 8 keys: 2 products of 16 multiply-adds each, one forward and two backward.
    double attention = 2.0 * 2 * 16 * 8 / 2 * 3;
    EXPECT_DOUBLE_EQ(model.flops_per_token(8), 6 * (2 * block + 31 * 12) + 2 * attention);
  }
}

TEST(Llama, TheFirstLossIsTheLogarithmOfTheVocabulary) {
  ModelConfig config = tiny_config(false);
  config.initializer_range = 0.02;
  TinyModel tiny(DType::kF32, config, 32);
  double loss = tiny.loss(test::random_batch(8 * 32, 31, 3, 0), test::cpu_exec(3), {.backward = false});
  EXPECT_NEAR(loss, std::log(31.0), 0.02);
}

TEST(Llama, RopeScalingChangesTheResult) {
  ModelConfig scaled = tiny_config(false);
  scaled.has_rope_scaling = true;
  scaled.rope_scaling = {.factor = 8, .low_freq_factor = 1, .high_freq_factor = 4, .original_max_position = 8};
  ModelConfig ignored = scaled;
  ignored.has_rope_scaling = false;
  TinyModel plain(DType::kF64, tiny_config(false), kSeqLen), with(DType::kF64, scaled, kSeqLen),
      without(DType::kF64, ignored, kSeqLen);
  Doubles h = plain.hidden(two_sequences().tokens, test::cpu_exec(1));
  EXPECT_GT(test::relative_l2(with.hidden(two_sequences().tokens, test::cpu_exec(1)), h), 1e-6);
  EXPECT_EQ(without.hidden(two_sequences().tokens, test::cpu_exec(1)), h);
}

TEST(Llama, MisuseThrows) {
  ParameterSet parameters(DType::kF32);
  ModelConfig odd = tiny_config(false), uneven = tiny_config(false);
  odd.head_dim = 3;
  uneven.num_key_value_heads = 3;
  EXPECT_THROW(Llama(odd, parameters), Error);
  EXPECT_THROW(Llama(uneven, parameters), Error);
  Llama model(tiny_config(false), parameters);
  Arena plan;
  Tape tape(test::cpu_exec(1), plan, parameters);
  EXPECT_THROW(model.hidden(tape, {nullptr, 14}), Error) << "not prepared";
  model.prepare(7);
  EXPECT_THROW(model.hidden(tape, {nullptr, 15}), Error) << "a part of a sequence";
  EXPECT_NO_THROW(model.hidden(tape, {nullptr, 14}));
}

}  // namespace
}  // namespace xce

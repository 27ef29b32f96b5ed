#include "src/train/step.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "kernels/base/check.h"
#include "tests/support/device_test.h"
#include "tests/support/tiny_step.h"

namespace xce {
namespace {

using test::Batch;
using test::tiny_config;
using test::tiny_settings;
using test::TinyModel;
using test::TinyStep;
using Doubles = std::vector<double>;

const DType kDTypes[] = {DType::kF32, DType::kBf16, DType::kF64};

double squared(const Doubles& x) {
  double sum = 0;
  for (double v : x) sum += v * v;
  return sum;
}

TEST(StepMemory, ThePlanIsExact) {
  for (DType dtype : kDTypes)
    for (bool recompute : {false, true})
      for (int64_t micro_batches : {1, 3}) {
        StepSettings settings = tiny_settings(2, micro_batches);
        settings.recompute_blocks = recompute;
        TinyStep s(dtype, settings);
        const size_t plan = s.step.plan_arena_bytes();
        EXPECT_EQ(s.step.arena_capacity_bytes(), plan);
        Batch batch = s.batch(1);
        s.run(batch);
        s.step.evaluate(batch.tokens.data(), batch.targets.data());
        s.run(batch);
        EXPECT_EQ(s.step.arena_peak_bytes(), plan) << name_of(dtype) << " recompute " << recompute;
        EXPECT_EQ(s.step.plan_arena_bytes(), plan) << "planning again";
      }
}

TEST(StepMemory, PlanningNeedsNoMemoryAndGivesTheSame) {
  for (DType dtype : kDTypes) {
    ParameterSet parameters(dtype);
    Llama model(tiny_config(true), parameters);
    model.prepare(test::kTinySeqLen);
    std::unique_ptr<Communicator> world = make_communicator();
    Step step(model, parameters, *world, test::cpu_device(2), tiny_settings());
    const size_t plan = step.plan_arena_bytes(), fixed = step.fixed_bytes();
    EXPECT_FALSE(parameters.allocated());
    EXPECT_EQ(step.arena_capacity_bytes(), 0u);
    TinyStep allocated(dtype, tiny_settings(), true);
    EXPECT_EQ(allocated.step.plan_arena_bytes(), plan) << name_of(dtype);
    EXPECT_EQ(allocated.step.fixed_bytes(), fixed);
  }
}

TEST(StepMemory, RecomputationPaysWithManyLayers) {
  size_t plan[2];
  for (bool recompute : {false, true}) {
    ParameterSet parameters(DType::kF32);
    Llama model(tiny_config(true, 12), parameters);
    model.prepare(512);
    std::unique_ptr<Communicator> world = make_communicator();
    StepSettings settings = tiny_settings();
    settings.seq_len = 512;
    settings.recompute_blocks = recompute;
    plan[recompute] = Step(model, parameters, *world, test::cpu_device(1), settings).plan_arena_bytes();
  }
  EXPECT_LT(plan[1], plan[0] * 2 / 3);
}

// With 131072 labels the logits of these tokens would take 2 GiB; the plan grows by no more than the loss's budget.
TEST(StepMemory, NothingGrowsWithTokensTimesVocabulary) {
  const int64_t budget = int64_t{64} << 20;
  auto plan = [&](int64_t vocab, bool recompute, DType dtype) {
    ModelConfig config = tiny_config(true);
    config.vocab_size = vocab;
    config.hidden_size = 64;
    ParameterSet parameters(dtype);
    Llama model(config, parameters);
    model.prepare(1024);
    std::unique_ptr<Communicator> world = make_communicator();
    StepSettings settings = tiny_settings(4);
    settings.seq_len = 1024;
    settings.recompute_blocks = recompute;
    settings.loss_workspace_bytes = budget;
    size_t bytes = Step(model, parameters, *world, test::cpu_device(2), settings).plan_arena_bytes();
    EXPECT_FALSE(parameters.allocated());
    return bytes;
  };
  for (DType dtype : {DType::kF32, DType::kBf16})
    for (bool recompute : {false, true})
      EXPECT_LE(plan(131072, recompute, dtype), plan(1024, recompute, dtype) + static_cast<size_t>(budget));
}

// Sequences with 7, 1, 4 and 0 valid targets.
Batch uneven_batch() {
  Batch batch = test::random_batch(4 * test::kTinySeqLen, 31, 9, 0);
  for (int i = 8; i < 14; ++i) batch.targets[i] = -100;
  for (int i = 15; i < 18; ++i) batch.targets[i] = -100;
  for (int i = 21; i < 28; ++i) batch.targets[i] = -100;
  return batch;
}

TEST(StepAccumulation, IsTheMeanOverTheTokensOfTheWholeBatch) {
  TinyModel whole(DType::kF64, tiny_config(true), test::kTinySeqLen);
  const double want_loss = whole.loss(uneven_batch(), test::cpu_exec(1));
  const Doubles want = whole.gradients();
  Doubles weights;
  for (int64_t micro_batch : {1, 2, 4}) {
    TinyStep s(DType::kF64, tiny_settings(micro_batch, 4 / micro_batch), true);
    s.accumulate(uneven_batch());
    EXPECT_LE(test::relative_l2(s.tiny.gradients(), want), 1e-12) << "micro-batches of " << micro_batch;
    s.step.update();
    EXPECT_NEAR(s.step.state().loss, want_loss, 1e-12 * want_loss);
    EXPECT_NEAR(s.step.state().grad_norm, std::sqrt(squared(want)), 1e-12 * s.step.state().grad_norm);
    Doubles masters = s.tiny.masters();
    if (weights.empty()) weights = masters;
    EXPECT_LE(test::relative_l2(masters, weights), 1e-10);
  }
  // The mean of the sequences' means is something else: the batch can tell.
  Doubles means(want.size(), 0.0);
  for (int i = 0; i < 4; ++i) {
    Batch all = uneven_batch(), one;
    one.tokens.assign(all.tokens.begin() + 7 * i, all.tokens.begin() + 7 * (i + 1));
    one.targets.assign(all.targets.begin() + 7 * i, all.targets.begin() + 7 * (i + 1));
    whole.loss(one, test::cpu_exec(1));
    Doubles g = whole.gradients();
    for (size_t e = 0; e < means.size(); ++e) means[e] += g[e] / 4;
  }
  EXPECT_GT(test::relative_l2(means, want), 0.1);
}

TEST(StepAccumulation, StartsAnewInEachStep) {
  TinyStep s(DType::kF64, tiny_settings(1, 3));
  s.accumulate(s.batch(1));
  Doubles first = s.tiny.gradients();
  s.accumulate(s.batch(2));
  EXPECT_NE(s.tiny.gradients(), first);
  s.accumulate(s.batch(1));
  EXPECT_EQ(s.tiny.gradients(), first);
}

// On each device with each dtype.
class StepTest : public ::testing::TestWithParam<std::tuple<std::string, DType>> {
 protected:
  void SetUp() override {
    if (std::get<0>(GetParam()) == "gpu" && !test::gpu_device()) GTEST_SKIP() << "needs a GPU";
  }
  DType dtype() const { return std::get<1>(GetParam()); }
  Device& device() const { return test::device_named(std::get<0>(GetParam())); }
  std::unique_ptr<TinyStep> make(const StepSettings& settings) const {
    return std::make_unique<TinyStep>(dtype(), settings, false, 1, device());
  }
};

TEST_P(StepTest, AGradientThatIsNotFiniteSkipsTheUpdateBitForBit) {
  for (double poison : {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    auto s_ = make(tiny_settings()), straight_ = make(tiny_settings());
    TinyStep &s = *s_, &straight = *straight_;
    for (TinyStep* each : {&s, &straight}) each->run(each->batch(1));
    auto before = s.weights();
    const StepState state = s.step.state();

    s.accumulate(s.batch(2));
    const int64_t element = s.tiny.parameters[3].offset + 1;
    test::TapeRig::write(s.tiny.parameters.grad(element), s.tiny.accum(), {poison}, false);
    s.step.update();
    EXPECT_EQ(s.weights(), before);
    EXPECT_EQ(s.step.state().apply, 0);
    EXPECT_EQ(s.step.state().step, state.step + 1);
    EXPECT_EQ(s.step.state().updates, state.updates);
    EXPECT_EQ(s.step.state().skipped, 1);

    for (TinyStep* each : {&s, &straight}) each->run(each->batch(3));
    EXPECT_EQ(s.weights(), straight.weights()) << "as if the skipped step had not been";
    EXPECT_EQ(s.step.state().lr, straight.step.state().lr);
    EXPECT_EQ(s.step.state().updates, straight.step.state().updates);
    EXPECT_EQ(s.step.state().step, straight.step.state().step + 1);
    EXPECT_EQ(s.step.state().skipped, 1);
  }
}

TEST_P(StepTest, ANaNWeightIsSeenInTheLossAndSkipsTheUpdate) {
  auto s_ = make(tiny_settings());
  TinyStep& s = *s_;
  const Parameter& norm = s.tiny.parameters.list().back();
  s.tiny.set_master(norm.offset, std::numeric_limits<double>::quiet_NaN());
  auto moments_before = s.weights()[1];
  s.run(s.batch(1));
  EXPECT_EQ(s.step.state().apply, 0);
  EXPECT_EQ(s.step.state().skipped, 1);
  EXPECT_EQ(s.weights()[1], moments_before);
}

TEST_P(StepTest, WithoutAnyTargetTheGradientIsZero) {
  auto s_ = make(tiny_settings(2, 2));
  TinyStep& s = *s_;
  s.run(s.batch(1));
  Batch none = s.batch(2);
  std::fill(none.targets.begin(), none.targets.end(), -100);
  s.accumulate(none);
  EXPECT_EQ(squared(s.tiny.gradients()), 0);
  s.step.update();
  EXPECT_EQ(s.step.state().loss, 0);
  EXPECT_EQ(s.step.state().grad_norm, 0);
  for (const Doubles& array : s.weights()) EXPECT_TRUE(std::isfinite(squared(array)));
}

TEST_P(StepTest, TheSameStateAndDataGiveTheSameBits) {
  auto a_ = make(tiny_settings(1, 2)), b_ = make(tiny_settings(1, 2));
  TinyStep &a = *a_, &b = *b_;
  b.run(b.batch(8));  // another past in memory and state
  TinyModel fresh(dtype(), tiny_config(false), test::kTinySeqLen);
  const DType accum = b.tiny.accum();
  test::TapeRig::write(b.tiny.parameters.master(), accum, fresh.masters(), false);
  const Doubles zeros(static_cast<size_t>(b.tiny.parameters.size()), 0.0);
  test::TapeRig::write(b.tiny.parameters.first_moment(), accum, zeros, false);
  test::TapeRig::write(b.tiny.parameters.second_moment(), accum, zeros, false);
  b.tiny.parameters.update_compute(b.device.exec());
  b.step.set_state(StepState{});
  for (uint64_t i = 0; i < 4; ++i) {
    a.run(a.batch(i));
    b.run(b.batch(i));
  }
  EXPECT_EQ(a.weights(), b.weights());
  EXPECT_EQ(a.step.state().loss, b.step.state().loss);
  EXPECT_EQ(a.step.state().grad_norm, b.step.state().grad_norm);
}

TEST_P(StepTest, RecomputedBlocksGiveTheSameWeights) {
  StepSettings recompute = tiny_settings(2, 2);
  recompute.recompute_blocks = true;
  auto kept_ = make(tiny_settings(2, 2)), again_ = make(recompute);
  TinyStep &kept = *kept_, &again = *again_;
  for (uint64_t i = 0; i < 3; ++i) {
    kept.run(kept.batch(i));
    again.run(again.batch(i));
  }
  EXPECT_EQ(kept.weights(), again.weights());
}

TEST_P(StepTest, LearnsATinyProblem) {
  StepSettings settings = tiny_settings();
  settings.schedule = {.kind = ScheduleKind::kConstant, .lr = 0.01, .total = 60};
  auto s_ = make(settings);
  TinyStep& s = *s_;
  Batch batch = s.batch(1);
  s.run(batch);
  const double first = s.step.state().loss;
  for (int i = 0; i < 59; ++i) s.run(batch);
  EXPECT_LT(s.step.state().loss, first / 4);
  EXPECT_EQ(s.step.state().updates, 60);
}

INSTANTIATE_TEST_SUITE_P(Devices, StepTest,
                         ::testing::Combine(::testing::ValuesIn(test::device_names()), ::testing::ValuesIn(kDTypes)),
                         [](const auto& info) {
                           return std::get<0>(info.param) + "_" + std::string(name_of(std::get<1>(info.param)));
                         });

TEST(Step, TheRateFollowsTheSchedule) {
  TinyStep s(DType::kF32, tiny_settings());
  for (int64_t i = 0; i < 5; ++i) {
    s.run(s.batch(1));
    EXPECT_EQ(s.step.state().lr, learning_rate(s.step.settings().schedule, i));
    EXPECT_EQ(s.step.state().step, i + 1);
  }
}

TEST(Step, ClipsToTheGivenNorm) {
  for (double max_norm : {0.0, 1e-3, 1e3}) {
    StepSettings settings = tiny_settings();
    settings.max_norm = max_norm;
    TinyStep s(DType::kF64, settings);
    s.accumulate(s.batch(1));
    const double norm = std::sqrt(squared(s.tiny.gradients()));
    s.step.update();
    EXPECT_NEAR(s.step.state().grad_norm, norm, 1e-12 * norm);
    EXPECT_NEAR(s.step.state().grad_scale, max_norm == 1e-3 ? 1e-3 / norm : 1, 1e-12);
  }
}

TEST(Step, OnlyMatricesDecay) {
  TinyStep s(DType::kF64, tiny_settings());
  Batch none = s.batch(1);
  std::fill(none.targets.begin(), none.targets.end(), -100);
  Doubles before = s.tiny.masters();
  s.run(none);  // no gradient: what moves is decay
  Doubles after = s.tiny.masters();
  const double kept = 1 - s.step.state().lr * 0.1;
  int matrices = 0;
  for (const Parameter& p : s.tiny.parameters.list()) {
    matrices += p.matrix();
    for (int64_t i = p.offset; i < p.offset + p.size(); ++i)
      ASSERT_NEAR(after[static_cast<size_t>(i)], before[static_cast<size_t>(i)] * (p.matrix() ? kept : 1), 1e-9)
          << p.name;
  }
  EXPECT_EQ(matrices, 2 + 2 * 4);
  EXPECT_NE(after, before);
}

TEST(Step, TrainsWithMoreTermsAndEvaluatesWithout) {
  StepSettings settings = tiny_settings();
  settings.terms = {.z_loss = 0.5, .label_smoothing = 0.1};
  TinyStep with(DType::kF64, settings), without(DType::kF64, tiny_settings());
  Batch batch = with.batch(1);
  const double plain = without.tiny.loss(batch, with.device.exec()),
               total = with.tiny.loss(batch, with.device.exec(), {.terms = settings.terms});
  EXPECT_GT(total, plain * 1.1);
  EvalResult eval = with.step.evaluate(batch.tokens.data(), batch.targets.data());
  EXPECT_NEAR(eval.loss_sum / static_cast<double>(eval.targets), plain, 1e-12 * plain);
  with.accumulate(batch);
  without.accumulate(batch);
  EXPECT_GT(test::relative_l2(with.tiny.gradients(), without.tiny.gradients()), 0.1);
  with.step.update();
  EXPECT_NEAR(with.step.state().loss, total, 1e-12 * total);
}

TEST(Step, EvaluationChangesNothing) {
  TinyStep s(DType::kF32, tiny_settings(2, 2)), undisturbed(DType::kF32, tiny_settings(2, 2));
  for (uint64_t i = 0; i < 3; ++i) {
    Batch other = test::random_batch(2 * test::kTinySeqLen, 31, 77);
    s.step.evaluate(other.tokens.data(), other.targets.data());
    s.run(s.batch(i));
    undisturbed.run(undisturbed.batch(i));
  }
  EXPECT_EQ(s.weights(), undisturbed.weights());
}

TEST(Step, RefusesSettingsWithoutRows) {
  TinyModel tiny(DType::kF32, tiny_config(true), test::kTinySeqLen);
  std::unique_ptr<Communicator> world = make_communicator();
  for (int64_t StepSettings::*field :
       {&StepSettings::seq_len, &StepSettings::micro_batch, &StepSettings::micro_batches}) {
    StepSettings settings = tiny_settings();
    settings.*field = 0;
    EXPECT_THROW(Step(tiny.model, tiny.parameters, *world, test::cpu_device(1), settings), Error);
  }
}

}  // namespace
}  // namespace xce

// The schedules at their corners, the clip factor, and what a step with a non-finite loss or norm leaves behind.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "kernels/base/check.h"
#include "kernels/step_control.h"
#include "tests/support/execs.h"

namespace xce {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

Schedule schedule(ScheduleKind kind, int64_t warmup, int64_t decay = 0) {
  return {.kind = kind, .lr = 0.4, .min_lr = 0.1, .warmup = warmup, .decay = decay, .total = 100};
}

TEST(LearningRate, WarmsUpLinearlyFromTheFirstUpdate) {
  for (ScheduleKind kind :
       {ScheduleKind::kConstant, ScheduleKind::kLinear, ScheduleKind::kCosine, ScheduleKind::kWsd}) {
    Schedule s = schedule(kind, 20, 30);
    EXPECT_DOUBLE_EQ(learning_rate(s, 0), 0.02);
    EXPECT_DOUBLE_EQ(learning_rate(s, 9), 0.2);
    EXPECT_DOUBLE_EQ(learning_rate(s, 19), 0.4);
    EXPECT_DOUBLE_EQ(learning_rate(s, 20), 0.4);
  }
}

TEST(LearningRate, WithoutWarmupStartsAtTheTop) {
  for (ScheduleKind kind : {ScheduleKind::kConstant, ScheduleKind::kLinear, ScheduleKind::kCosine, ScheduleKind::kWsd})
    EXPECT_DOUBLE_EQ(learning_rate(schedule(kind, 0, 30), 0), 0.4);
}

TEST(LearningRate, ConstantStaysPastTotal) {
  for (int64_t u : {20, 99, 100, 1000}) EXPECT_DOUBLE_EQ(learning_rate(schedule(ScheduleKind::kConstant, 20), u), 0.4);
}

TEST(LearningRate, LinearFallsToMinAtTotal) {
  Schedule s = schedule(ScheduleKind::kLinear, 20);
  EXPECT_DOUBLE_EQ(learning_rate(s, 40), 0.4 - 0.3 * 0.25);
  EXPECT_DOUBLE_EQ(learning_rate(s, 60), 0.25);
  EXPECT_DOUBLE_EQ(learning_rate(s, 99), 0.1 + 0.3 / 80);
  for (int64_t u : {100, 101, 5000}) EXPECT_DOUBLE_EQ(learning_rate(s, u), 0.1);
  EXPECT_DOUBLE_EQ(learning_rate(schedule(ScheduleKind::kLinear, 0), 50), 0.25);
}

TEST(LearningRate, CosineFallsToMinAtTotal) {
  Schedule s = schedule(ScheduleKind::kCosine, 20);
  EXPECT_NEAR(learning_rate(s, 40), 0.25 + 0.15 * std::sqrt(0.5), 1e-15);
  EXPECT_NEAR(learning_rate(s, 60), 0.25, 1e-15);
  EXPECT_NEAR(learning_rate(s, 80), 0.25 - 0.15 * std::sqrt(0.5), 1e-15);
  for (int64_t u : {100, 101, 5000}) EXPECT_DOUBLE_EQ(learning_rate(s, u), 0.1);
  EXPECT_NEAR(learning_rate(schedule(ScheduleKind::kCosine, 0), 50), 0.25, 1e-15);
}

TEST(LearningRate, WsdHoldsThenDecays) {
  Schedule s = schedule(ScheduleKind::kWsd, 20, 30);
  for (int64_t u : {20, 50, 69, 70}) EXPECT_DOUBLE_EQ(learning_rate(s, u), 0.4);
  EXPECT_DOUBLE_EQ(learning_rate(s, 71), 0.4 - 0.3 / 30);
  EXPECT_DOUBLE_EQ(learning_rate(s, 85), 0.25);
  for (int64_t u : {100, 101, 5000}) EXPECT_DOUBLE_EQ(learning_rate(s, u), 0.1);
  EXPECT_DOUBLE_EQ(learning_rate(schedule(ScheduleKind::kWsd, 20, 0), 99), 0.4);
  EXPECT_DOUBLE_EQ(learning_rate(schedule(ScheduleKind::kWsd, 20, 0), 100), 0.1);
  EXPECT_DOUBLE_EQ(learning_rate(schedule(ScheduleKind::kWsd, 20, 500), 60), 0.25);  // decay from the warm-up's end
}

TEST(LearningRate, WarmupOfTheWholeRunEndsAtTheTop) {
  for (ScheduleKind kind : {ScheduleKind::kLinear, ScheduleKind::kCosine, ScheduleKind::kWsd}) {
    EXPECT_DOUBLE_EQ(learning_rate(schedule(kind, 100, 30), 99), 0.4);
    EXPECT_DOUBLE_EQ(learning_rate(schedule(kind, 100, 30), 100), 0.1);
  }
}

struct Outcome {
  double loss, norm2, max_norm;
};
StepState after(const Exec& exec, StepState state, const Outcome& o) {
  test::Vector<double> in{o.loss, o.norm2};
  test::Vector<StepState> out{state};
  run(exec, StepControl{&in[0], &in[1], out.data(), schedule(ScheduleKind::kLinear, 4), o.max_norm});
  return out[0];
}

TEST(StepControl, AppliedStepAdvancesAllButSkipped) {
  for (const Exec& exec : test::all_execs()) {
    StepState state = after(exec, {}, {2.5, 9.0, 0.0});
    EXPECT_EQ(state.step, 1);
    EXPECT_EQ(state.updates, 1);
    EXPECT_EQ(state.skipped, 0);
    EXPECT_EQ(state.apply, 1);
    EXPECT_DOUBLE_EQ(state.loss, 2.5);
    EXPECT_DOUBLE_EQ(state.grad_norm, 3.0);
    EXPECT_DOUBLE_EQ(state.lr, 0.1);
    state = after(exec, state, {2.5, 9.0, 0.0});
    EXPECT_EQ(state.updates, 2);
    EXPECT_DOUBLE_EQ(state.lr, 0.2);
  }
}

TEST(StepControl, ClipsOnlyNormsAboveTheLimit) {
  for (const Exec& exec : test::all_execs()) {
    EXPECT_DOUBLE_EQ(after(exec, {}, {1.0, 16.0, 0.0}).grad_scale, 1.0);
    EXPECT_DOUBLE_EQ(after(exec, {}, {1.0, 16.0, 1.0}).grad_scale, 0.25);
    EXPECT_DOUBLE_EQ(after(exec, {}, {1.0, 16.0, 4.0}).grad_scale, 1.0);
    EXPECT_DOUBLE_EQ(after(exec, {}, {1.0, 16.0, 5.0}).grad_scale, 1.0);
    EXPECT_DOUBLE_EQ(after(exec, {}, {1.0, 0.0, 1.0}).grad_scale, 1.0);
    EXPECT_DOUBLE_EQ(after(exec, {}, {1.0, 16.0, 1.0}).grad_norm, 4.0);
  }
}

TEST(StepControl, EveryScheduleGivesTheRateOfTheUpdatesSoFar) {
  for (const Exec& exec : test::all_execs())
    for (ScheduleKind kind :
         {ScheduleKind::kConstant, ScheduleKind::kLinear, ScheduleKind::kCosine, ScheduleKind::kWsd})
      for (int64_t updates : {0, 5, 20, 40, 69, 71, 99, 100, 1000}) {
        test::Vector<double> in{1.0, 1.0};
        test::Vector<StepState> state(1);
        state[0].updates = updates;
        run(exec, StepControl{&in[0], &in[1], state.data(), schedule(kind, 20, 30)});
        EXPECT_NEAR(state[0].lr, learning_rate(schedule(kind, 20, 30), updates), 1e-15) << updates;
        EXPECT_GT(state[0].lr, 0.01);
      }
}

TEST(StepControl, NonFiniteStepIsSkippedAndTheRateWaits) {
  const Outcome bad[] = {{kNan, 1.0, 1.0}, {kInf, 1.0, 1.0}, {1.0, kInf, 1.0}, {1.0, kNan, 1.0}, {1.0, kNan, 0.0}};
  for (const Exec& exec : test::all_execs())
    for (const Outcome& outcome : bad) {
      StepState first = after(exec, {}, {1.0, 1.0, 1.0});
      StepState skip = after(exec, first, outcome);
      EXPECT_EQ(skip.apply, 0);
      EXPECT_EQ(skip.step, 2);
      EXPECT_EQ(skip.updates, 1);
      EXPECT_EQ(skip.skipped, 1);
      EXPECT_DOUBLE_EQ(skip.grad_scale, 1.0);
      EXPECT_FALSE(std::isfinite(skip.loss) && std::isfinite(skip.grad_norm));
      StepState next = after(exec, skip, {1.0, 1.0, 1.0});
      EXPECT_EQ(next.apply, 1);
      EXPECT_EQ(next.step, 3);
      EXPECT_EQ(next.updates, 2);
      EXPECT_EQ(next.skipped, 1);
      EXPECT_DOUBLE_EQ(next.lr, skip.lr);
      EXPECT_DOUBLE_EQ(next.lr, 0.2);
    }
}

TEST(StepControl, RejectsBadArguments) {
  Exec exec = test::cpu_exec(1);
  double x = 1;
  StepState state;
  EXPECT_THROW(run(exec, StepControl{nullptr, &x, &state, {}}), Error);
  EXPECT_THROW(run(exec, StepControl{&x, nullptr, &state, {}}), Error);
  EXPECT_THROW(run(exec, StepControl{&x, &x, nullptr, {}}), Error);
  EXPECT_THROW(run(exec, StepControl{&x, &x, &state, {}, -1.0}), Error);
  EXPECT_THROW(run(exec, StepControl{&x, &x, &state, {.warmup = -1}}), Error);
  EXPECT_THROW(run(exec, StepControl{&x, &x, &state, {.decay = -1}}), Error);
  EXPECT_EQ(state.step, 0);
}

}  // namespace
}  // namespace xce

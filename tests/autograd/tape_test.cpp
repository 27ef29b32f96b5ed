// The tape's invariants with real ops as users: who writes and who adds, what is copied, when memory goes back, hooks,
// recomputation.
#include "src/autograd/tape.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "kernels/base/check.h"
#include "src/ops/ops.h"
#include "tests/support/tape_rig.h"

namespace xce {
namespace {

using test::TapeRig;
using Doubles = std::vector<double>;

constexpr Shape kShape{3, 4};
constexpr double kEps = 0.1;

// An fp64 tape over 1 MiB of poisoned memory, a square weight (index 0), a norm's weight (1) and one nobody uses (2).
class TapeTest : public ::testing::Test {
 protected:
  TapeTest() {
    parameters.add({.name = "square", .rows = 4, .cols = 4, .unit = 0, .init_stddev = 0.6});
    parameters.add({.name = "norm", .rows = 1, .cols = 4, .unit = 0, .init_stddev = 0.3});
    parameters.add({.name = "unused", .rows = 1, .cols = 4, .unit = 0, .init_stddev = 1});
    parameters.allocate();
    parameters.initialize(4, test::cpu_exec(1));
    parameters.begin_gradients();
    arena.poison_free();
  }
  Var input(Tape& t, Doubles* gradient, uint64_t seed = 1) {
    return TapeRig::leaf(t, kShape, test::Array::normal(DType::kF64, kShape.size(), seed).values(), gradient);
  }
  static void seed(const Var& y) { TapeRig::seed_gradient(y, TapeRig::coefficients(y.shape().size())); }
  static Doubles values(const Var& x) { return TapeRig::read(x.data(), x.dtype(), x.shape().size()); }
  Doubles gradients() {
    parameters.finish_gradients(exec);
    return TapeRig::read(parameters.grad(), DType::kF64, parameters.size());
  }
  static Doubles times(double factor, Doubles x) {
    for (double& v : x) v *= factor;
    return x;
  }
  // Two residual branches: linear and norm, each used more than once.
  static Var block(const Var& x) {
    Tape& t = x.tape();
    Var h = add(x, linear(rms_norm(x, t.parameter(1), kEps), t.parameter(0)));
    return add(h, linear(h, t.parameter(0)));
  }

  const Doubles kC = TapeRig::coefficients(kShape.size());
  Exec exec = test::cpu_exec(2);
  ParameterSet parameters{DType::kF64};
  Buffer memory{1 << 20};
  Arena arena{memory.data(), memory.size_bytes()};
  Tape tape{exec, arena, parameters};
};

TEST_F(TapeTest, FirstWriterOverwritesLaterOnesAdd) {
  Doubles dx;
  {
    Var x = input(tape, &dx);
    for (int i = 0; i < 3; ++i) seed(x);  // three steps that each ask grad_out where to write
  }
  tape.backward();
  EXPECT_EQ(dx, times(3, kC)) << "memory was full of NaN: one of the three must have overwritten";
}

TEST_F(TapeTest, GradOutTellsOverwriteFromAdd) {
  std::vector<bool> accumulate;
  Doubles dx;
  {
    Var x = input(tape, &dx);
    for (int i = 0; i < 2; ++i)
      tape.on_backward([this, x, &accumulate] {
        GradOut out = tape.grad_out(x);
        accumulate.push_back(out.accumulate);
        TapeRig::write(out.data, DType::kF64, kC, out.accumulate);
      });
  }
  tape.backward();
  EXPECT_EQ(accumulate, (std::vector<bool>{false, true}));
  accumulate.clear();
  for (int i = 0; i < 2; ++i) accumulate.push_back(tape.grad_out(tape.parameter(1)).accumulate);
  EXPECT_EQ(accumulate, (std::vector<bool>{false, true})) << "parameters: for the life of the step";
  parameters.begin_gradients();
  EXPECT_FALSE(tape.grad_out(tape.parameter(1)).accumulate);
}

TEST_F(TapeTest, SharedGradientIsCopiedBeforeOneOwnerAddsToIt) {
  for (bool by_pass : {false, true}) {
    Doubles da, db;
    {
      Var a = input(tape, &da), b = input(tape, &db, 2);
      if (by_pass)  // played after the sum: a's gradient grows while b's shares its memory
        tape.on_backward([this, a] {
          Grad more = std::make_shared<GradSlot>(GradSlot{kShape, DType::kF64, tape.scratch(kShape.size() * 8)});
          TapeRig::write(more->storage->data(), DType::kF64, kC, false);
          tape.pass_grad(more, a);
        });
      else
        seed(a);
      seed(add(a, b));
    }
    tape.backward();
    EXPECT_EQ(da, times(2, kC));
    EXPECT_EQ(db, kC) << "the other owner's gradient did not change";
  }
}

TEST_F(TapeTest, ChangingAGradientInPlaceSparesItsOtherOwners) {
  Doubles da, db;
  {
    Var a = input(tape, &da), b = input(tape, &db, 2);
    Var scaled = tape.alias(a);
    tape.on_backward(scaled, [this, a = tape.gradient_only(a)](const Grad& dy) {
      TapeRig::write(tape.own_grad(dy), DType::kF64, times(-2, kC), false);
      tape.pass_grad(dy, a);
    });
    seed(add(scaled, b));
  }
  tape.backward();
  EXPECT_EQ(da, times(-2, kC));
  EXPECT_EQ(db, kC);
}

TEST_F(TapeTest, AValueAddedToItself) {
  Doubles dx;
  {
    Var x = input(tape, &dx);
    Var two = add(x, x);
    seed(add(two, two));
  }
  tape.backward();
  EXPECT_EQ(dx, times(4, kC));
}

TEST_F(TapeTest, AStepWhoseGradientNobodyWroteIsNotPlayed) {
  bool played = false;
  Doubles dx(3, 42.0);
  {
    Var x = input(tape, &dx), y = tape.make(kShape), dead_end = linear(x, tape.parameter(0));
    tape.on_backward(y, [&](const Grad&) { played = true; });
  }
  tape.backward();
  EXPECT_FALSE(played);
  EXPECT_EQ(dx, Doubles(3, 42.0)) << "nothing reached the input";
  EXPECT_EQ(gradients(), Doubles(static_cast<size_t>(parameters.size()), 0.0)) << "nor the parameters";
  EXPECT_EQ(arena.in_use_bytes(), 0u);
  EXPECT_EQ(tape.recorded_steps(), 0u);
}

TEST_F(TapeTest, UnusedParametersAndPaddingEndWithZero) {
  Doubles dx;
  {
    Var x = input(tape, &dx);
    seed(block(x));
  }
  tape.backward();
  Doubles g = gradients();
  const Parameter &norm = parameters[1], &unused = parameters[2];
  for (int64_t i = 0; i < 4; ++i) EXPECT_NE(g[static_cast<size_t>(norm.offset + i)], 0);
  for (int64_t i = norm.offset + 4; i < parameters.size(); ++i) EXPECT_EQ(g[static_cast<size_t>(i)], 0) << i;
  EXPECT_EQ(g[static_cast<size_t>(unused.offset)], 0);
}

TEST_F(TapeTest, ValuesGoBackAtTheirLastUse) {
  const size_t one = Arena::kAlign;  // a value of 12 doubles takes one aligned block
  Doubles dx;
  Var x = input(tape, &dx);
  EXPECT_EQ(arena.in_use_bytes(), one);
  Var h = add(x, x);
  EXPECT_EQ(arena.in_use_bytes(), 2 * one);
  h = add(h, h);
  EXPECT_EQ(arena.in_use_bytes(), 2 * one) << "add keeps nothing: the first sum is gone";
  h = linear(h, tape.parameter(0));
  EXPECT_EQ(arena.in_use_bytes(), 3 * one) << "linear keeps its input";
  seed(h);
  h = Var();
  EXPECT_EQ(arena.in_use_bytes(), 2 * one) << "nobody reads the output";
  x = Var();
  EXPECT_EQ(arena.in_use_bytes(), one) << "nor the input, whose users need only its gradient";
  tape.backward();
  EXPECT_EQ(arena.in_use_bytes(), 0u);
  EXPECT_FALSE(dx.empty());
}

TEST_F(TapeTest, AGradientGoesWhenItsStepWasPlayedThoughItsValueLives) {
  Doubles dx;
  Var x = input(tape, &dx), y = add(x, x), z = linear(y, tape.parameter(0));
  seed(z);
  const size_t values_alone = arena.in_use_bytes();
  tape.backward();
  EXPECT_FALSE(dx.empty());
  EXPECT_EQ(arena.in_use_bytes(), values_alone);
}

TEST_F(TapeTest, WithoutRecordingNothingIsSavedOrAsked) {
  tape.set_recording(false);
  Doubles dx(1, 42.0);
  Var x = input(tape, &dx), y = block(x);
  EXPECT_EQ(tape.recorded_steps(), 0u);
  EXPECT_EQ(arena.in_use_bytes(), 2 * Arena::kAlign) << "input and output alone";
  EXPECT_THROW(tape.grad_out(x), Error);
  tape.backward();
  EXPECT_EQ(dx, Doubles(1, 42.0));

  Tape recorded(exec, arena, parameters);
  Var again = block(input(recorded, &dx));
  EXPECT_EQ(values(y), values(again));
}

TEST_F(TapeTest, APlanLaunchesNothingAndPredictsThePeak) {
  Arena plan;
  Doubles dx;
  auto program = [&](Tape& t) {
    {
      Var x = input(t, &dx);
      for (int i = 0; i < 3; ++i) x = t.unit(i, i == 1, x, block);
      seed(x);
    }
    t.backward();
  };
  ParameterSet unallocated(DType::kF64);
  for (const Parameter& p : parameters.list()) unallocated.add(p);
  for (ParameterSet* set : {&unallocated, &parameters}) {
    Arena fresh;
    Tape dry(exec, fresh, *set);
    program(dry);
    EXPECT_EQ(fresh.in_use_bytes(), 0u);
    EXPECT_TRUE(plan.peak_bytes() == 0 || plan.peak_bytes() == fresh.peak_bytes());
    plan = std::move(fresh);
  }
  EXPECT_FALSE(unallocated.allocated());
  EXPECT_TRUE(dx.empty());
  for (double g : TapeRig::read(parameters.grad(), DType::kF64, parameters.size())) ASSERT_EQ(g, 0) << "was written";
  parameters.begin_gradients();

  Buffer exact(plan.peak_bytes());
  Arena real(exact.data(), exact.size_bytes());
  Tape t(exec, real, parameters);
  program(t);
  EXPECT_EQ(real.peak_bytes(), plan.peak_bytes());
  EXPECT_EQ(real.in_use_bytes(), 0u);
  EXPECT_EQ(dx.size(), 12u);
}

// What the hooks see, in order: "f2" before the forward of unit 2, "F2" after it, "b2" and "B2" around its backward.
class UnitTest : public TapeTest {
 protected:
  std::string run_units(bool recompute, bool record = true) {
    std::string seen;
    auto note = [&seen](const char* name) {
      return [&seen, name](int unit) { seen += name + std::to_string(unit) + " "; };
    };
    Tape t(exec, arena, parameters);
    t.set_recording(record);
    t.hooks() = {note("f"), note("F"), note("b"), note("B")};
    auto noted_block = [&seen](const Var& x) {
      seen += "run ";
      x.tape().on_backward([&seen] { seen += "back "; });
      return block(x);
    };
    Doubles dx;
    {
      Var x = input(t, &dx);
      for (int unit = 0; unit < 2; ++unit) x = t.unit(unit, recompute, x, noted_block);
      seed(x);
    }
    t.backward();
    return seen;
  }
};

TEST_F(UnitTest, HooksSurroundForwardAndBackward) {
  EXPECT_EQ(run_units(false), "f0 run F0 f1 run F1 b1 back B1 b0 back B0 ");
}
TEST_F(UnitTest, RecomputationHappensBetweenTheBackwardHooks) {
  EXPECT_EQ(run_units(true), "f0 run F0 f1 run F1 b1 run back B1 b0 run back B0 ");
}
TEST_F(UnitTest, WithoutRecordingOnlyTheForwardHooksRun) {
  EXPECT_EQ(run_units(false, false), "f0 run F0 f1 run F1 ");
  EXPECT_EQ(run_units(true, false), "f0 run F0 f1 run F1 ");
}

struct Played {
  Doubles y, dx, dparameters;
  size_t peak;
  bool operator==(const Played& o) const { return y == o.y && dx == o.dx && dparameters == o.dparameters; }
};

class RecomputeTest : public TapeTest {
 protected:
  // Three units; with poison, free memory is NaN before each forward and each backward of a unit and before each step.
  Played play(bool recompute, bool poison = false, bool shared_output = false) {
    Arena a(memory.data(), memory.size_bytes());
    a.poison_free();
    parameters.begin_gradients();
    Tape t(exec, a, parameters);
    auto poison_now = [&a, poison](int) {
      if (poison) a.poison_free();
    };
    t.hooks() = {poison_now, poison_now, poison_now, poison_now};
    auto poisoned_block = [&](const Var& x) {
      auto step = [&] {
        poison_now(0);
        t.on_backward([&] { poison_now(0); });
      };
      step();
      Var norm = rms_norm(x, t.parameter(1), kEps);
      step();
      Var branch = linear(norm, t.parameter(0));
      norm = Var();
      step();
      Var h = add(x, branch);
      branch = Var();
      step();
      return add(h, linear(h, t.parameter(0)));
    };
    Played result{};
    {
      Var x = input(t, &result.dx), first = x;
      for (int unit = 0; unit < 3; ++unit) x = t.unit(unit, recompute, x, poisoned_block);
      result.y = values(x);
      seed(shared_output ? add(x, first) : x);
    }
    t.backward();
    result.dparameters = gradients();
    result.peak = a.peak_bytes();
    EXPECT_EQ(a.in_use_bytes(), 0u);
    return result;
  }
};

TEST_F(RecomputeTest, GivesTheBitsOfKeepingInLessMemory) {
  for (bool shared_output : {false, true}) {
    Played kept = play(false, false, shared_output), again = play(true, false, shared_output);
    EXPECT_EQ(kept, again);
    EXPECT_LT(again.peak, kept.peak);
    double norm = 0;
    for (double g : kept.dparameters) norm += g * g;
    EXPECT_TRUE(std::isfinite(norm) && norm > 0);
  }
}

TEST_F(RecomputeTest, ReadsNothingThatWasNotWritten) {
  for (bool recompute : {false, true})
    for (bool shared_output : {false, true})
      EXPECT_EQ(play(recompute, true, shared_output), play(recompute, false, shared_output));
}

TEST_F(RecomputeTest, AUnitThatReturnsItsInputPassesTheGradientOn) {
  for (bool recompute : {false, true}) {
    Doubles dx;
    {
      Var x = input(tape, &dx);
      Var y = tape.unit(0, recompute, x, [](const Var& in) { return in; });
      seed(add(x, y));
    }
    tape.backward();
    EXPECT_EQ(dx, times(2, kC)) << (recompute ? "recomputed" : "kept");
  }
}

TEST_F(RecomputeTest, AUnitWhoseGradientNobodyWroteIsNotRunAgain) {
  int runs = 0;
  {
    Doubles dx;
    Var x = input(tape, &dx);
    tape.unit(0, true, x, [&runs](const Var& in) {
      ++runs;
      return block(in);
    });
  }
  tape.backward();
  EXPECT_EQ(runs, 1);
}

TEST_F(TapeTest, MisuseThrowsAndLeavesTheTapeRecording) {
  Doubles dx;
  Var x = input(tape, &dx);
  auto failing = [](const Var&) -> Var { throw Error(ErrorCode::kRuntime, "no"); };
  EXPECT_THROW(tape.unit(0, true, x, failing), Error);
  EXPECT_TRUE(tape.recording());
  EXPECT_THROW(Var().data(), Error);
  EXPECT_THROW(tape.alias(tape.parameter(0)), Error);
  Grad other = std::make_shared<GradSlot>(GradSlot{{1, 1}, DType::kF64, tape.scratch(8)});
  EXPECT_THROW(tape.pass_grad(other, x), Error) << "another shape";
}

}  // namespace
}  // namespace xce

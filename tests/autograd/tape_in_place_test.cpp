// grad_over: a gradient in its value's own memory, if and only if nobody else can see that.
#include <gtest/gtest.h>

#include <vector>

#include "tests/support/tape_rig.h"

namespace xce {
namespace {

using test::TapeRig;
using Doubles = std::vector<double>;

constexpr Shape kShape{3, 4};

class GradOver : public ::testing::Test {
 protected:
  Var input(Doubles* gradient) {
    return TapeRig::leaf(tape, kShape, test::Array::normal(DType::kF64, kShape.size(), 1).values(), gradient);
  }
  // A backward step that holds x and writes its gradient with grad_over.
  void write_over(const Var& x, bool* over) {
    tape.on_backward([this, x, over] {
      GradOut out = tape.grad_over(x);
      *over = out.data == x.data();
      TapeRig::write(out.data, DType::kF64, kC, out.accumulate);
    });
  }

  const Doubles kC = TapeRig::coefficients(kShape.size());
  ParameterSet parameters{DType::kF64};
  Buffer memory{1 << 16};
  Arena arena{memory.data(), memory.size_bytes()};
  Tape tape{test::cpu_exec(1), arena, parameters};
  Doubles dx;
  bool over = false;
};

TEST_F(GradOver, TakesTheMemoryOfAValueThatNobodyElseHolds) {
  write_over(input(&dx), &over);
  const size_t peak = arena.peak_bytes();
  tape.backward();
  EXPECT_TRUE(over);
  EXPECT_EQ(dx, kC);
  EXPECT_EQ(arena.peak_bytes(), peak) << "no memory of its own";
  EXPECT_EQ(arena.in_use_bytes(), 0u);
}

TEST_F(GradOver, SparesAValueWithAnotherHolder) {
  for (bool by_alias : {false, true}) {
    Var handle;
    {
      Var x = input(&dx);
      handle = by_alias ? tape.alias(x) : x;
      write_over(x, &over);
    }
    const Doubles before = TapeRig::read(handle.data(), DType::kF64, kShape.size());
    tape.backward();
    EXPECT_FALSE(over);
    EXPECT_EQ(dx, kC);
    EXPECT_EQ(TapeRig::read(handle.data(), DType::kF64, kShape.size()), before);
  }
}

TEST_F(GradOver, AddsToAGradientThatWasBegun) {
  {
    Var x = input(&dx);
    write_over(x, &over);
    TapeRig::seed_gradient(x, kC);
  }
  tape.backward();
  EXPECT_FALSE(over);
  Doubles twice = kC;
  for (double& v : twice) v *= 2;
  EXPECT_EQ(dx, twice);
}

}  // namespace
}  // namespace xce

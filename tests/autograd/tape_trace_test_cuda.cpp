// The ranges that a profiler sees of a tape's units.
#include <gtest/gtest.h>

#include "src/autograd/tape.h"
#include "src/core/trace.h"
#include "tests/support/execs.h"
#include "tests/support/nvtx_recorder.h"

namespace xce {
namespace {

void play(bool recompute, bool record, bool failing) {
  Exec exec = test::cpu_exec(1);
  Buffer memory(1 << 16);
  Arena arena(memory.data(), memory.size_bytes());
  ParameterSet parameters(DType::kF64);
  Tape tape(exec, arena, parameters);
  tape.set_recording(record);
  tape.hooks().before_backward = [](int) { TraceRange gather("gather"); };
  auto doubled = [failing](const Var& x) {
    TraceRange op("op");
    Var y = x.tape().make(x.shape());
    y.tape().on_backward(y, [x, failing](const Grad& dy) {
      TraceRange back("back");
      if (failing) throw Error(ErrorCode::kRuntime, "x");
      x.tape().pass_grad(dy, x);
    });
    return y;
  };
  {
    Var x = tape.unit({0, "first"}, false, tape.make({1, 1}), doubled);
    Var y = tape.unit(1, recompute, x, doubled);
    if (record) tape.grad_out(y);
  }
  tape.backward();
}
std::string ranges_of(bool recompute, bool record = true) {
  test::take_nvtx_ranges();
  play(recompute, record, false);
  return test::take_nvtx_ranges();
}

TEST(TapeTrace, UnitsAreRangesForwardAndBackward) {
  EXPECT_EQ(ranges_of(false),
            "first forward( op( ) ) unit 1 forward( op( ) ) "
            "unit 1 backward( gather( ) back( ) ) first backward( gather( ) back( ) ) ");
}
TEST(TapeTrace, RecomputationIsARangeOfTheBackward) {
  EXPECT_EQ(ranges_of(true),
            "first forward( op( ) ) unit 1 forward( op( ) ) "
            "unit 1 backward( gather( ) recompute( op( ) ) back( ) ) first backward( gather( ) back( ) ) ");
}
TEST(TapeTrace, WithoutRecordingThereIsNoBackward) {
  EXPECT_EQ(ranges_of(false, false), "first forward( op( ) ) unit 1 forward( op( ) ) ");
}
TEST(TapeTrace, AnErrorLeavesNoRangeOpen) {
  test::take_nvtx_ranges();
  EXPECT_THROW(play(false, true, true), Error);
  EXPECT_EQ(test::take_nvtx_ranges(),
            "first forward( op( ) ) unit 1 forward( op( ) ) unit 1 backward( gather( ) back( ) ) ");
}

}  // namespace
}  // namespace xce

// Random combinations of everything cross-entropy over given logits takes, against the fp64 reference. How many and
// which: tests/README.md.
#include <gtest/gtest.h>

#include "tests/support/device_test.h"
#include "tests/support/loss_random.h"

namespace xce::test {
namespace {

class CrossEntropyRandom : public DeviceTest {};
INSTANTIATE_TEST_SUITE_P(Devices, CrossEntropyRandom, ::testing::ValuesIn(device_names()), device_name);

void check_draw(const Exec& exec, LossDraw& draw) {
  const LogitsCase l{draw.c, draw.y};
  const LossAnswer want = l.answer();
  const CrossEntropyRun fresh(l, draw.s);
  CrossEntropyRun two(l, draw.s);
  two.forward(exec);
  expect_loss(two, want, draw.s.dtype);
  EXPECT_TRUE(two.logits.same_bits(fresh.logits));
  two.backward(exec);
  expect_gradients(two, want);
  EXPECT_TRUE(two.inputs_equal(fresh));
  if (draw.one_in(4)) draw.s.omit |= LossCall::kResidual;
  CrossEntropyRun both(l, draw.s);
  both.forward_backward(exec);
  expect_loss(both, want, draw.s.dtype);
  expect_gradients(both, want);
  EXPECT_TRUE(both.inputs_equal(fresh));
  if (draw.one_in(8)) {
    CrossEntropyRun again(l, draw.s);
    again.forward_backward(exec);
    for (auto [one, other] : {std::pair{&both.loss, &again.loss},
                              {&both.row_loss, &again.row_loss},
                              {&both.gradient(), &again.gradient()},
                              {&both.row_entropy, &again.row_entropy}})
      EXPECT_TRUE(one->same_bits(*other)) << "not repeatable";
  }
}

TEST_P(CrossEntropyRandom, AnyCombination) {
  const uint64_t seed = random_seed();
  for (uint64_t k = 0; k < random_cases(on_gpu() ? 1000 : 4000); ++k) {
    LossDraw draw(seed + k);
    SCOPED_TRACE(draw.describe());
    check_draw(on_gpu() ? exec() : cpu_exec(draw.threads), draw);
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace xce::test

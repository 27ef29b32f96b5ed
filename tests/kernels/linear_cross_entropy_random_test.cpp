// Random combinations of everything the fused loss takes, against the fp64 reference. How many and which:
// tests/README.md.
#include <gtest/gtest.h>

#include "tests/support/device_test.h"
#include "tests/support/loss_random.h"

namespace xce::test {
namespace {

class LinearCrossEntropyRandom : public DeviceTest {};
INSTANTIATE_TEST_SUITE_P(Devices, LinearCrossEntropyRandom, ::testing::ValuesIn(device_names()), device_name);

void expect_same_bits(const LossRun& a, const LossRun& b) {
  for (auto [one, other] : {std::pair{&a.loss, &b.loss},
                            {&a.row_loss, &b.row_loss},
                            {&a.dx, &b.dx},
                            {&a.dweight, &b.dweight},
                            {&a.dbias, &b.dbias},
                            {&a.row_entropy, &b.row_entropy}})
    EXPECT_TRUE(one->same_bits(*other)) << "not repeatable";
}

void check_draw(const Exec& exec, LossDraw& draw) {
  const LossAnswer want = reference_linear_cross_entropy(draw.c);
  const LossRun fresh(draw.c, draw.s);
  LossRun two(draw.c, draw.s);
  two.forward(exec);
  expect_loss(two, want, draw.s.dtype);
  two.backward(exec);
  expect_gradients(two, want);
  EXPECT_TRUE(two.inputs_equal(fresh));
  if (draw.one_in(4)) draw.s.omit |= LossCall::kResidual;
  LossRun both(draw.c, draw.s);
  both.forward_backward(exec);
  expect_loss(both, want, draw.s.dtype);
  expect_gradients(both, want);
  EXPECT_TRUE(both.inputs_equal(fresh));
  if (draw.one_in(8)) {
    LossRun again(draw.c, draw.s);
    again.forward_backward(exec);
    expect_same_bits(both, again);
  }
}

TEST_P(LinearCrossEntropyRandom, AnyCombination) {
  const uint64_t seed = random_seed();
  for (uint64_t k = 0; k < random_cases(on_gpu() ? 400 : 2000); ++k) {
    LossDraw draw(seed + k, on_gpu());
    SCOPED_TRACE(draw.describe());
    check_draw(on_gpu() ? exec() : cpu_exec(draw.threads), draw);
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace xce::test

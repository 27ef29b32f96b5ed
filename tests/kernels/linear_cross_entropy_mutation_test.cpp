// The comparisons that judge the loss can fail: wrong gradients and losses, at mean reduction, are outside the bars.
#include <gtest/gtest.h>

#include <functional>

#include "tests/support/loss_harness.h"

namespace xce::test {
namespace {

LossCase case_with_upstream(double upstream) {
  LossCase c = random_case(DType::kBf16, 4000, 8, 1000, 1);
  c.upstream = {upstream};
  return c;
}

struct Judged {
  LossCase c = case_with_upstream(-2);
  LossSetup s{.dtype = DType::kBf16};
  LossAnswer want = reference_linear_cross_entropy(c);
  LossRun got{c, s};
  Judged() { got.forward_backward(cpu_exec(2)); }
  bool accepts(const Array& values, const std::vector<double>& want_values) const {
    return static_cast<bool>(close(values, want_values, gradient_bar(DType::kBf16, want.max_logit)));
  }
};

void expect_rejected(const std::function<double(double)>& mutation) {
  Judged j;
  ASSERT_TRUE(j.accepts(j.got.dx, j.want.dx));
  ASSERT_TRUE(j.accepts(j.got.dweight, j.want.dweight));
  ASSERT_TRUE(j.accepts(j.got.dbias, j.want.dbias));
  for (Array* a : {&j.got.dx, &j.got.dweight, &j.got.dbias})
    for (int64_t i = 0; i < a->size(); ++i) a->set(i, mutation((*a)[i]));
  EXPECT_FALSE(j.accepts(j.got.dx, j.want.dx));
  EXPECT_FALSE(j.accepts(j.got.dweight, j.want.dweight));
  EXPECT_FALSE(j.accepts(j.got.dbias, j.want.dbias));
}

TEST(LinearCrossEntropyMutation, ZeroedGradientsFail) {
  expect_rejected([](double) { return 0.0; });
}
TEST(LinearCrossEntropyMutation, SignFlippedGradientsFail) {
  expect_rejected([](double g) { return -g; });
}
TEST(LinearCrossEntropyMutation, IgnoredUpstreamFails) {
  expect_rejected([](double g) { return g / -2; });
}
TEST(LinearCrossEntropyMutation, WrongDenominatorFails) {
  expect_rejected([](double g) { return g * 0.9; });
}
TEST(LinearCrossEntropyMutation, UnwrittenElementFails) {
  Judged j;
  j.got.dweight.set(7, std::nan(""));
  EXPECT_FALSE(j.accepts(j.got.dweight, j.want.dweight));
}
TEST(LinearCrossEntropyMutation, OneRowsGradientLeftOutFails) {
  Judged j;
  int64_t row = 0;
  while (!j.c.valid(row)) ++row;
  for (int64_t h = 0; h < j.c.hidden; ++h) j.got.dx.set(row * j.c.hidden + h, 0);
  EXPECT_FALSE(j.accepts(j.got.dx, j.want.dx));
}
TEST(LinearCrossEntropyMutation, LossOffByAPartInTenThousandFails) {
  Judged j;
  EXPECT_NEAR(j.got.loss[0], j.want.loss, loss_bar(DType::kBf16, j.want.loss, j.want.max_logit));
  EXPECT_GT(std::fabs(j.want.loss * 1.0001 - j.want.loss), loss_bar(DType::kBf16, j.want.loss, j.want.max_logit));
}

}  // namespace
}  // namespace xce::test

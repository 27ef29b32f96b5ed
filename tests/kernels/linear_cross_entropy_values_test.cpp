// Loss and gradients of the fused loss against the fp64 reference: shapes, dtypes, options, budgets, on every device.
#include <gtest/gtest.h>

#include "tests/support/loss_harness.h"

namespace xce::test {
namespace {

// forward + backward and forward_backward, both checked.
void check_case(const LossCase& c, const LossSetup& s) {
  LossAnswer want = reference_linear_cross_entropy(c);
  for (const Exec& exec : all_execs()) {
    LossRun two(c, s), one(c, s);
    two.forward(exec);
    expect_loss(two, want, s.dtype);
    two.backward(exec);
    expect_gradients(two, want, s);
    one.forward_backward(exec);
    expect_loss(one, want, s.dtype);
    expect_gradients(one, want, s);
  }
}

constexpr DType kDTypes[] = {DType::kF32, DType::kBf16, DType::kF64};

std::string describe(DType dtype, int64_t n, int64_t h, int64_t v) {
  return str(name_of(dtype), " N ", n, " H ", h, " V ", v);
}

TEST(LinearCrossEntropyValues, Shapes) {
  for (DType dtype : kDTypes) {
    for (auto [n, h, v] :
         {std::tuple{1, 1, 1}, {1, 31, 2}, {7, 64, 7}, {127, 31, 123}, {128, 127, 513}, {129, 64, 1000}}) {
      SCOPED_TRACE(describe(dtype, n, h, v));
      check_case(random_case(dtype, n, h, v, n + h + v), {.dtype = dtype});
    }
  }
}

TEST(LinearCrossEntropyValues, LargeVocabulariesAndManyRows) {
  for (auto [n, h, v] : {std::tuple{1000, 8, 257}, {4097, 5, 123}, {7, 8, 50257}, {5, 4, 131072}, {3, 5, 151936}}) {
    SCOPED_TRACE(describe(DType::kF32, n, h, v));
    check_case(random_case(DType::kF32, n, h, v, n + h + v), {.dtype = DType::kF32});
  }
}

}  // namespace
}  // namespace xce::test

// The fused loss at extreme logits: large shifts, all equal, peaked rows, -inf among them.
#include <gtest/gtest.h>

#include "tests/support/loss_harness.h"

namespace xce::test {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

void check_case(const LossCase& c, LossSetup s) {
  LossAnswer want = reference_linear_cross_entropy(c);
  for (size_t budget : {size_t{128} << 20, size_t{64} << 10}) {
    s.budget_bytes = budget;
    for (const Exec& exec : all_execs()) {
      LossRun both(c, s), two(c, s);
      both.forward_backward(exec);
      expect_loss(both, want, s.dtype);
      expect_gradients(both, want);
      two.forward(exec);
      expect_loss(two, want, s.dtype);
      two.backward(exec);
      expect_gradients(two, want);
    }
  }
}

// x of zeros: the bias alone is the logit row.
LossCase logits_by_bias(int64_t rows, const std::vector<double>& bias, const std::vector<int64_t>& labels) {
  LossCase c = random_case(DType::kF32, rows, 4, static_cast<int64_t>(bias.size()), 1);
  c.x.assign(c.x.size(), 0);
  c.bias = bias;
  c.labels = labels;
  return c;
}

TEST(LinearCrossEntropyExtremes, ShiftedLogits) {
  for (DType dtype : {DType::kF32, DType::kF64, DType::kBf16}) {
    for (double shift : {100.0, -100.0, 1e4, -1e4}) {
      SCOPED_TRACE(str(name_of(dtype), " shift ", shift));
      LossCase c = random_case(dtype, 40, 8, 700, 2);
      for (double& b : c.bias) b = dtype == DType::kBf16 ? static_cast<float>(Bf16(static_cast<float>(shift))) : shift;
      check_case(c, {.dtype = dtype});
    }
  }
}

TEST(LinearCrossEntropyExtremes, AllLogitsMinusThousand) {
  LossCase c = logits_by_bias(5, std::vector<double>(700, -1000.0), {0, 699, 3, -100, 350});
  check_case(c, {});
  LossRun got(c, {});
  got.forward(cpu_exec(3));
  EXPECT_NEAR(got.row_loss[0], std::log(700.0), 1e-5);
}

TEST(LinearCrossEntropyExtremes, Ties) {
  LossCase c = random_case(DType::kF32, 30, 8, 700, 3);
  for (int64_t v = 1; v < c.vocab; v += 2) {
    c.bias[v] = c.bias[v - 1];
    for (int64_t h = 0; h < c.hidden; ++h) c.weight[v * c.hidden + h] = c.weight[(v - 1) * c.hidden + h];
  }
  check_case(c, {});
}

// Half of the rows name the peak (zero loss), half do not (a loss of the gap).
TEST(LinearCrossEntropyExtremes, PeakedRows) {
  for (DType dtype : {DType::kF32, DType::kBf16, DType::kF64}) {
    for (double gap : {60.0, 88.0, 104.0, 700.0}) {
      SCOPED_TRACE(str(name_of(dtype), " gap ", gap));
      LossCase c = random_case(dtype, 40, 8, 700, 4);
      c.bias[333] = gap;
      for (int64_t i = 0; i < c.rows; i += 2) c.labels[i] = 333;
      check_case(c, {.dtype = dtype});
    }
  }
}

TEST(LinearCrossEntropyExtremes, LargeSpread) {
  for (DType dtype : {DType::kF32, DType::kBf16}) check_case(random_case(dtype, 40, 16, 700, 5, 20), {.dtype = dtype});
}

TEST(LinearCrossEntropyExtremes, OneFiniteLogitAmongMinusInfinity) {
  std::vector<double> bias(1300, -kInf);
  bias[600] = 2.5;
  LossCase c = logits_by_bias(3, bias, {600, 600, -100});
  check_case(c, {});
  c.labels = {600, 7, 600};  // a label of probability 0: infinite loss, finite gradient
  LossAnswer want = reference_linear_cross_entropy(c);
  for (size_t budget : {size_t{1} << 20, size_t{8} << 10}) {
    for (const Exec& exec : all_execs()) {
      LossRun got(c, {.budget_bytes = budget});
      got.forward_backward(exec);
      EXPECT_EQ(got.row_loss[0], 0);
      EXPECT_EQ(got.row_loss[1], kInf);
      EXPECT_EQ(got.loss[0], kInf);
      expect_gradients(got, want);
    }
  }
}

TEST(LinearCrossEntropyExtremes, SomeLogitsMinusInfinity) {
  LossCase c = random_case(DType::kF32, 30, 8, 1300, 6);
  for (int64_t v = 0; v < 700; ++v) c.bias[v] = -kInf;  // a whole first tile and more
  for (int64_t& label : c.labels) label = label < 0 ? label : 700 + label % 600;
  check_case(c, {});
}

}  // namespace
}  // namespace xce::test

// Loss and gradients of the fused loss against the fp64 reference: shapes, dtypes, options, budgets, on every device.
#include "kernels/linear_cross_entropy/linear_cross_entropy.h"

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
    expect_gradients(two, want);
    one.forward_backward(exec);
    expect_loss(one, want, s.dtype);
    expect_gradients(one, want);
  }
}

constexpr DType kDTypes[] = {DType::kF32, DType::kBf16, DType::kF16, DType::kF64};

std::string describe(DType dtype, int64_t n, int64_t h, int64_t v) {
  return str(name_of(dtype), " N ", n, " H ", h, " V ", v);
}

TEST(LinearCrossEntropy, Shapes) {
  for (DType dtype : kDTypes) {
    for (auto [n, h, v] :
         {std::tuple{1, 1, 1}, {1, 31, 2}, {7, 64, 7}, {127, 31, 123}, {128, 127, 513}, {129, 64, 1000}}) {
      SCOPED_TRACE(describe(dtype, n, h, v));
      check_case(random_case(dtype, n, h, v, n + h + v), {.dtype = dtype});
    }
  }
}

TEST(LinearCrossEntropy, LargeVocabulariesAndManyRows) {
  for (auto [n, h, v] : {std::tuple{1000, 8, 257}, {4097, 5, 123}, {7, 8, 50257}, {3, 5, 151936}, {2, 3, 262144}}) {
    SCOPED_TRACE(describe(DType::kF32, n, h, v));
    check_case(random_case(DType::kF32, n, h, v, n + h + v), {.dtype = DType::kF32});
  }
}

// Vocabularies for which a Hopper GPU holds a row of logits in a cluster's registers, each of its variants, with fewer
// rows than clusters and with several rows to each.
TEST(LinearCrossEntropy, LargeVocabulariesInBf16) {
  for (auto [n, h, v] : {std::tuple{9, 8, 16384},
                         {7, 16, 40000},
                         {6, 24, 70001},
                         {5, 16, 131072},
                         {4, 8, 200000},
                         {3, 8, 262144},
                         {150, 3, 20000},
                         {150, 3, 40001},
                         {120, 3, 70000},
                         {60, 3, 140000}}) {
    SCOPED_TRACE(describe(DType::kBf16, n, h, v));
    LossCase c = random_case(DType::kBf16, n, h, v, n + h + v);
    c.z_loss = 0.001;
    check_case(c, {.dtype = DType::kBf16});
  }
}

// Several rows to each cluster, ignored ones anywhere between those that count.
TEST(LinearCrossEntropy, UpstreamPerRowOfLargeVocabulariesInBf16) {
  LossCase c = random_case(DType::kBf16, 150, 3, 20000, 20);
  for (int64_t i = 0; i < c.rows; ++i)
    if (i % 7 < 3 && i > 20) c.labels[i] = c.ignore_index;
  c.own_mean = false;
  c.divisor = 1;
  c.upstream = Array::normal(DType::kF32, c.rows, 21).values();
  check_case(c, {.dtype = DType::kBf16, .reduction = Reduction::kNone});
  c.upstream.clear();
  c.divisor = 0;  // zero loss and gradients; the residual is still the rows'
  LossAnswer want = reference_linear_cross_entropy(c);
  for (const Exec& exec : all_execs()) {
    LossRun got(c, {.dtype = DType::kBf16, .by_pointer = true});
    got.forward_backward(exec);
    EXPECT_EQ(got.loss[0], 0);
    expect_gradients(got, want);
  }
}

TEST(LinearCrossEntropy, WideHidden) {
  for (DType dtype : {DType::kF32, DType::kBf16, DType::kF16})
    check_case(random_case(dtype, 17, 2048, 515, 3), {.dtype = dtype});
}

TEST(LinearCrossEntropy, Reductions) {
  for (DType dtype : kDTypes) {
    LossCase c = random_case(dtype, 37, 16, 123, 5);
    check_case(c, {.dtype = dtype, .reduction = Reduction::kMean});
    c.own_mean = false;
    c.divisor = 1;
    check_case(c, {.dtype = dtype, .reduction = Reduction::kSum});
    check_case(c, {.dtype = dtype, .reduction = Reduction::kNone});
  }
}

TEST(LinearCrossEntropy, ZLossIsIncludedOnceAndReportedApart) {
  for (DType dtype : kDTypes) {
    LossCase c = random_case(dtype, 37, 16, 123, 6);
    c.z_loss = 0.01;
    check_case(c, {.dtype = dtype});
    check_case(c, {.dtype = dtype, .budget_bytes = 16 << 10});
  }
}

TEST(LinearCrossEntropy, DenominatorByPointer) {
  LossCase c = random_case(DType::kF32, 37, 16, 123, 7);
  c.own_mean = false;
  c.divisor = 1234.5;
  check_case(c, {.by_pointer = true});
  c.divisor = 0;  // zero loss and gradients; the residual is still the rows'
  LossAnswer want = reference_linear_cross_entropy(c);
  for (const Exec& exec : all_execs()) {
    LossRun got(c, {.by_pointer = true});
    got.forward_backward(exec);
    EXPECT_EQ(got.loss[0], 0);
    expect_gradients(got, want);
  }
}

TEST(LinearCrossEntropy, ScalarUpstream) {
  for (double upstream : {0.0, 1.0, -2.0, 1e-3, 65536.0}) {
    SCOPED_TRACE(upstream);
    LossCase c = random_case(DType::kF32, 37, 16, 123, 8);
    c.upstream = {upstream};
    check_case(c, {});
  }
}

TEST(LinearCrossEntropy, UpstreamPerRow) {
  LossCase c = random_case(DType::kF32, 41, 16, 123, 9);
  c.own_mean = false;
  c.divisor = 1;
  c.upstream = Array::normal(DType::kF32, c.rows, 10).values();
  check_case(c, {.reduction = Reduction::kNone, .upstream_stride = 1});
  check_case(c, {.reduction = Reduction::kNone, .upstream_stride = 3});
  check_case(c, {.reduction = Reduction::kNone, .upstream_stride = 3, .budget_bytes = 8 << 10});
  c.upstream = {-1.5};  // an expanded scalar: stride 0
  check_case(c, {.reduction = Reduction::kNone});
}

TEST(LinearCrossEntropy, UpstreamNanReachesValidRowsAlone) {
  LossCase c = random_case(DType::kF32, 12, 8, 33, 11);
  c.labels[4] = c.ignore_index;
  c.upstream = {std::nan("")};
  for (const Exec& exec : all_execs()) {
    LossRun got(c, {});
    got.forward_backward(exec);
    EXPECT_TRUE(std::isfinite(got.loss[0]));
    for (int64_t i = 0; i < c.rows; ++i) EXPECT_EQ(std::isnan(got.dx[i * c.hidden]), c.valid(i)) << i;
    for (int64_t h = 0; h < c.hidden; ++h) EXPECT_EQ(got.dx[4 * c.hidden + h], 0);
  }
}

TEST(LinearCrossEntropy, EachGradientIsOptional) {
  for (int mask = 0; mask < 8; ++mask) {
    SCOPED_TRACE(mask);
    LossCase c = random_case(DType::kBf16, 33, 16, 130, 12);
    LossSetup s{.dtype = DType::kBf16,
                .budget_bytes = 64 << 10,
                .with_dx = (mask & 1) != 0,
                .with_dweight = (mask & 2) != 0,
                .with_dbias = (mask & 4) != 0};
    check_case(c, s);
  }
}

TEST(LinearCrossEntropy, AccumulatesIntoNonZeroGradients) {
  for (DType dtype : kDTypes) {
    LossCase c = random_case(dtype, 70, 16, 130, 13);
    c.own_mean = false;
    c.divisor = 1;
    check_case(c, {.dtype = dtype, .reduction = Reduction::kSum, .accumulate = true});
    check_case(c, {.dtype = dtype, .reduction = Reduction::kSum, .budget_bytes = 16 << 10, .accumulate = true});
  }
}

TEST(LinearCrossEntropy, DxInAccumDtypeIsNotRounded) {
  for (DType dtype : {DType::kBf16, DType::kF16}) {
    LossCase c = random_case(dtype, 33, 16, 130, 14);
    check_case(c, {.dtype = dtype, .dx_in_accum_dtype = true});
  }
}

TEST(LinearCrossEntropy, DweightInDtypeIsRoundedOnce) {
  for (DType dtype : kDTypes) {
    LossCase c = random_case(dtype, 70, 16, 130, 20);
    if (dtype == DType::kF16) c.upstream = {64};  // as a loss scale: fp16's small gradients would be subnormal
    check_case(c, {.dtype = dtype, .dweight_in_dtype = true, .pad_dweight = 3});
    check_case(c, {.dtype = dtype, .with_dbias = false, .dweight_in_dtype = true, .budget_factor = 1});
  }
}

TEST(LinearCrossEntropy, TargetTypesAndStrides) {
  LossCase c = random_case(DType::kF32, 37, 16, 123, 15);
  for (IndexType index : {IndexType::kI32, IndexType::kI64})
    for (int64_t stride : {1, 3}) check_case(c, {.index = index, .index_stride = stride});
}

TEST(LinearCrossEntropy, IgnoreIndexMayBeAnyValue) {
  for (int64_t ignore : {int64_t{5}, int64_t{0}, int64_t{-1}, int64_t{1} << 40, std::numeric_limits<int64_t>::min()}) {
    SCOPED_TRACE(ignore);
    LossCase c = random_case(DType::kF32, 60, 8, 9, 16);
    for (int64_t& label : c.labels) label = label == c.ignore_index ? ignore : label;
    c.ignore_index = ignore;
    check_case(c, {});
  }
}

TEST(LinearCrossEntropy, LeadingDimensions) {
  for (DType dtype : kDTypes) {
    LossCase c = random_case(dtype, 37, 16, 123, 17);
    check_case(c, {.dtype = dtype, .pad_x = 5, .pad_weight = 3});
  }
}

TEST(LinearCrossEntropy, WithoutBias) {
  for (DType dtype : kDTypes) check_case(random_case(dtype, 37, 16, 123, 18, 1, false), {.dtype = dtype});
}

}  // namespace
}  // namespace xce::test

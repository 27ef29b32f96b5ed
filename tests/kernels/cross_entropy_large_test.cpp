// Offsets beyond 2^31 elements in every array that has rows. On a CPU the rows lie 2^30 elements apart, so that the
// memory between them is never touched; a GPU also takes 2^31 logits side by side.
#include <gtest/gtest.h>

#include <cstring>
#include <memory>

#include "kernels/cross_entropy/cross_entropy.h"
#include "kernels/linear_cross_entropy/linear_cross_entropy.h"
#include "tests/support/device_test.h"
#include "tests/support/loss_expect.h"
#include "tests/support/loss_options.h"

namespace xce::test {
namespace {

class LossLarge : public DeviceTest {};
INSTANTIATE_TEST_SUITE_P(Devices, LossLarge, ::testing::ValuesIn(device_names()), device_name);

// Three rows of bf16; each array has columns of its own in all of them.
class FarRows {
 public:
  static constexpr int64_t kLd = (int64_t{1} << 30) + 8, kRows = 3, kWidth = 4096;
  Bf16* take(int64_t cols) {
    Bf16* array = data_.get() + used_;
    used_ += cols + 8;
    return array;
  }
  Bf16* take(const std::vector<double>& values, int64_t cols) {
    Bf16* array = take(cols);
    for (int64_t i = 0; i < kRows; ++i)
      for (int64_t v = 0; v < cols; ++v) array[i * kLd + v] = Bf16(static_cast<float>(values[i * cols + v]));
    return array;
  }
  static std::vector<double> values(const Bf16* array, int64_t cols) {
    std::vector<double> all;
    for (int64_t i = 0; i < kRows; ++i)
      for (int64_t v = 0; v < cols; ++v) all.push_back(static_cast<double>(static_cast<float>(array[i * kLd + v])));
    return all;
  }

 private:
  static constexpr size_t kBytes = (2 * kLd + kWidth) * sizeof(Bf16);
  struct Release {
    void operator()(Bf16* data) const { release(data, kBytes); }
  };
  std::unique_ptr<Bf16, Release> data_{static_cast<Bf16*>(allocate(kBytes))};
  int64_t used_ = 0;
};

template <class Args>
void run_in_scratch(const Exec& exec, Args& args) {
  Vector<char> scratch(workspace_bytes(exec, args));
  if constexpr (requires { args.workspace.data; }) {
    args.workspace.data = scratch.data();
    args.workspace.size_bytes = scratch.size();
  } else {
    args.workspace = scratch.data();
    args.workspace_size_bytes = scratch.size();
  }
  run(exec, args);
}

TEST_P(LossLarge, LogitsAndProbabilitiesWithOffsetsBeyond2To31Elements) {
  constexpr int64_t kVocab = 100;
  for (bool by_probabilities : {false, true}) {
    LossCase c = random_case(DType::kBf16, FarRows::kRows, 1, kVocab, 1);
    LossSetup s{.dtype = DType::kBf16};
    c.labels = {3, 50, 99};
    c.label_smoothing = 0.1;
    if (by_probabilities) options::probabilities(c, s, DType::kBf16);
    const std::vector<double> y = Array::normal(DType::kBf16, FarRows::kRows * kVocab, 2, 2).values();
    const LossAnswer want = reference_cross_entropy(c, y);
    FarRows far;
    Vector<int64_t> labels(c.labels.begin(), c.labels.end());
    Vector<float> loss(1, NAN), offset(FarRows::kRows, NAN), logsum(FarRows::kRows, NAN);
    CrossEntropyInputs in{.logits = far.take(y, kVocab),
                          .targets = {},
                          .rows = FarRows::kRows,
                          .vocab = kVocab,
                          .dtype = DType::kBf16,
                          .ld = FarRows::kLd};
    if (by_probabilities)
      in.targets = {.probabilities = far.take(c.probabilities, kVocab),
                    .probability_type = DType::kBf16,
                    .ld_probabilities = FarRows::kLd};
    else
      in.targets = {.index = labels.data(), .type = IndexType::kI64};
    const LossOptions options{.label_smoothing = 0.1};
    const LossOutputs out{.loss = loss.data(), .offset = offset.data(), .logsum = logsum.data()};
    const double bar = gradient_bar(DType::kBf16, want.max_logit);
    auto expect_gradient = [&](const Bf16* dlogits) {
      EXPECT_TRUE(close_values(FarRows::values(dlogits, kVocab), want.dlogits, DType::kBf16, bar, {}));
    };
    Bf16* two = far.take(kVocab);
    CrossEntropyForward forward{.in = in, .options = options, .out = out};
    run_in_scratch(exec(), forward);
    EXPECT_NEAR(loss[0], want.loss, loss_bar(DType::kBf16, want.loss, want.max_logit));
    CrossEntropyBackward backward{.in = in,
                                  .options = options,
                                  .offset = offset.data(),
                                  .logsum = logsum.data(),
                                  .upstream = {},
                                  .dlogits = two,
                                  .ld_dlogits = FarRows::kLd};
    run_in_scratch(exec(), backward);
    expect_gradient(two);
    Bf16* both = far.take(kVocab);
    CrossEntropyForwardBackward at_once{
        .in = in, .options = options, .out = out, .upstream = {}, .dlogits = both, .ld_dlogits = FarRows::kLd};
    run_in_scratch(exec(), at_once);
    expect_gradient(both);
    at_once.dlogits = const_cast<void*>(in.logits);
    run_in_scratch(exec(), at_once);
    expect_gradient(static_cast<const Bf16*>(in.logits));
  }
}

TEST_P(LossLarge, LinearHeadWithOffsetsBeyond2To31Elements) {
  constexpr int64_t kVocab = FarRows::kRows, kHidden = 24;
  LossCase c = random_case(DType::kBf16, FarRows::kRows, kHidden, kVocab, 3, 1, false);
  c.labels = {2, 0, 1};
  const LossAnswer want = reference_linear_cross_entropy(c);
  FarRows far;
  Vector<int64_t> labels(c.labels.begin(), c.labels.end());
  Vector<float> loss(1, NAN);
  Bf16 *dx = far.take(kHidden), *dweight = far.take(kHidden);
  LinearCrossEntropyForwardBackward args{.in = {.x = far.take(c.x, kHidden),
                                                .weight = far.take(c.weight, kHidden),
                                                .bias = nullptr,
                                                .targets = {.index = labels.data(), .type = IndexType::kI64},
                                                .rows = FarRows::kRows,
                                                .hidden = kHidden,
                                                .vocab = kVocab,
                                                .dtype = DType::kBf16,
                                                .ldx = FarRows::kLd,
                                                .ldw = FarRows::kLd},
                                         .options = {},
                                         .out = {.loss = loss.data()},
                                         .upstream = {},
                                         .grad = {.dx = dx,
                                                  .dweight = dweight,
                                                  .dweight_in_dtype = true,
                                                  .ld_dx = FarRows::kLd,
                                                  .ld_dweight = FarRows::kLd},
                                         .workspace = {}};
  run_in_scratch(exec(), args);
  EXPECT_NEAR(loss[0], want.loss, loss_bar(DType::kBf16, want.loss, want.max_logit));
  const double bar = 2 * gradient_bar(DType::kBf16, want.max_logit);
  EXPECT_TRUE(close_values(FarRows::values(dx, kHidden), want.dx, DType::kBf16, bar, {want.dx_terms, true}));
  EXPECT_TRUE(
      close_values(FarRows::values(dweight, kHidden), want.dweight, DType::kBf16, bar, {want.dweight_terms, true}));
}

// 4 GB of logits of seven kinds of rows, so that a wrong row is seen; the gradient overwrites them.
TEST_P(LossLarge, MoreThanTwoToThe31LogitsInPlace) {
  if (!on_gpu()) GTEST_SKIP() << "takes a GPU's bandwidth; offsets of this size are tested above";
  constexpr int64_t kRows = 16500, kVocab = 131072, kKinds = 7;
  static_assert(kRows * kVocab > int64_t{1} << 31);
  LossCase c = random_case(DType::kBf16, kKinds, 1, kVocab, 4);
  c.own_mean = false, c.divisor = kRows;
  const Array kinds = Array::normal(DType::kBf16, kKinds * kVocab, 5, 2);
  Vector<Bf16> logits(kRows * kVocab);
  Vector<int32_t> labels(kRows);
  const size_t row_bytes = kVocab * sizeof(Bf16);
  for (int64_t i = 0; i < kRows; ++i) {
    std::memcpy(&logits[i * kVocab], static_cast<const char*>(kinds.data()) + i % kKinds * row_bytes, row_bytes);
    labels[i] = static_cast<int32_t>(c.labels[i % kKinds] = (i % kKinds) * 18724 + 17);
  }
  const LossAnswer want = reference_cross_entropy(c, kinds.values());
  Vector<float> row_loss(kRows, NAN);
  CrossEntropyForwardBackward args{.in = {.logits = logits.data(),
                                          .targets = {.index = labels.data()},
                                          .rows = kRows,
                                          .vocab = kVocab,
                                          .dtype = DType::kBf16},
                                   .options = {},
                                   .out = {.row_loss = row_loss.data()},
                                   .upstream = {},
                                   .dlogits = logits.data()};
  run_in_scratch(exec(), args);
  for (int64_t i = 0; i < kRows; ++i)
    ASSERT_NEAR(row_loss[i], want.row_loss[i % kKinds],
                loss_bar(DType::kBf16, want.row_loss[i % kKinds], want.max_logit))
        << i;
  for (int64_t i : {int64_t{0}, int64_t{8191}, int64_t{16383}, int64_t{16384}, int64_t{16385}, kRows - 1}) {
    std::vector<double> got;
    for (int64_t v = 0; v < kVocab; ++v) got.push_back(static_cast<double>(static_cast<float>(logits[i * kVocab + v])));
    const auto row = want.dlogits.begin() + i % kKinds * kVocab;
    EXPECT_TRUE(close_values(got, {row, row + kVocab}, DType::kBf16, gradient_bar(DType::kBf16, want.max_logit), {}))
        << i;
  }
}

}  // namespace
}  // namespace xce::test

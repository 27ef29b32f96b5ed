// The loss's laws 2 to 9 (kernels/linear_cross_entropy/README.md), and the values at which such kernels have gone
// wrong.
#include <gtest/gtest.h>

#include <set>

#include "tests/support/device_test.h"
#include "tests/support/loss_harness.h"

namespace xce::test {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
class LinearCrossEntropyLaws : public DeviceTest {};
INSTANTIATE_TEST_SUITE_P(Devices, LinearCrossEntropyLaws, ::testing::ValuesIn(device_names()), device_name);

// The whole case against the reference, at kept and at recomputed logits.
void check_case(const Exec& exec, const LossCase& c, LossSetup s = {}) {
  LossAnswer want = reference_linear_cross_entropy(c);
  for (size_t budget : {size_t{128} << 20, size_t{16} << 10}) {
    s.budget_bytes = budget;
    LossRun got(c, s);
    got.forward_backward(exec);
    expect_loss(got, want, s.dtype);
    expect_gradients(got, want);
  }
}

int64_t chunk_count(const Exec& exec, const LinearCrossEntropyForwardBackward& call) {
  return std::visit([&](const auto& device) { return chunks(device, call).count; }, exec);
}

TEST_P(LinearCrossEntropyLaws, Law2_ErrorDoesNotDependOnTheNumberOfChunks) {
  for (DType dtype : {DType::kF32, DType::kBf16}) {
    LossCase c = random_case(dtype, 500, 16, 300, 1);
    LossAnswer want = reference_linear_cross_entropy(c);
    std::set<int64_t> counts;
    for (size_t budget : {6u << 10, 16u << 10, 64u << 10, 200u << 10, 500u << 10, 8u << 20}) {
      LossSetup s{.dtype = dtype, .budget_bytes = budget};
      LossRun got(c, s);
      counts.insert(chunk_count(exec(), call_of(got, budget)));
      got.forward_backward(exec());
      expect_loss(got, want, dtype);
      expect_gradients(got, want);
    }
    EXPECT_GE(counts.size(), 5u);
    EXPECT_EQ(*counts.begin(), 1);    // all rows in one chunk
    EXPECT_GE(*counts.rbegin(), 30);  // and in many
  }
}

TEST_P(LinearCrossEntropyLaws, Law2_OneRowPerChunk) {
  LossCase c = random_case(DType::kF32, 9, 16, 40, 2);
  LossSetup s;
  LossRun got(c, s);
  for (s.budget_bytes = 64;; s.budget_bytes += 64) {  // the first budget that is enough
    try {
      if (chunk_count(exec(), call_of(got, s.budget_bytes)) > 0) break;
    } catch (const Error&) {
    }
  }
  EXPECT_EQ(chunk_count(exec(), call_of(got, s.budget_bytes)), 9);
  LossRun small(c, s);
  small.forward_backward(exec());
  LossAnswer want = reference_linear_cross_entropy(c);
  expect_loss(small, want, s.dtype);
  expect_gradients(small, want);
}

TEST_P(LinearCrossEntropyLaws, Law3_BitwiseRepeatable) {
  for (DType dtype : {DType::kF32, DType::kBf16}) {
    LossCase c = random_case(dtype, 300, 32, 2000, 3);
    for (size_t budget : {size_t{128} << 20, size_t{1} << 20, size_t{100} << 10}) {
      LossSetup s{.dtype = dtype, .budget_bytes = budget};
      LossRun first(c, s);
      first.forward_backward(exec());
      for (int repeat = 0; repeat < 5; ++repeat) {
        LossRun again(c, s);
        again.forward_backward(exec());
        EXPECT_TRUE(again.loss.same_bits(first.loss));
        EXPECT_TRUE(again.row_loss.same_bits(first.row_loss));
        EXPECT_TRUE(again.dx.same_bits(first.dx));
        EXPECT_TRUE(again.dweight.same_bits(first.dweight));
        EXPECT_TRUE(again.dbias.same_bits(first.dbias));
      }
    }
  }
}

TEST_P(LinearCrossEntropyLaws, Law3_RepeatedBackwardFromOneForward) {
  LossCase c = random_case(DType::kF32, 100, 16, 700, 4);
  LossRun got(c, {}), again(c, {});
  got.forward(exec());
  again.forward(exec());
  got.backward(exec());
  for (int repeat = 0; repeat < 3; ++repeat) again.backward(exec());
  EXPECT_TRUE(again.dweight.same_bits(got.dweight));
  EXPECT_TRUE(again.dx.same_bits(got.dx));
}

TEST_P(LinearCrossEntropyLaws, Law5_AllRowsIgnoredGiveZero) {
  for (size_t budget : {size_t{1} << 20, size_t{16} << 10}) {
    LossCase c = random_case(DType::kF32, 50, 8, 130, 5);
    c.labels.assign(c.rows, c.ignore_index);
    c.x.assign(c.x.size(), kInf);  // never 0 * inf
    LossRun got(c, {.budget_bytes = budget});
    got.forward_backward(exec());
    EXPECT_EQ(got.loss[0], 0);
    EXPECT_EQ(got.z_loss[0], 0);
    EXPECT_EQ(got.n_valid, 0);
    for (const Array* a : {&got.dx, &got.dweight, &got.dbias, &got.row_loss, &got.offset, &got.logsum})
      for (int64_t i = 0; i < a->size(); ++i) ASSERT_EQ((*a)[i], 0);
  }
}

TEST_P(LinearCrossEntropyLaws, Law5_NoRowsGiveZero) {
  LossCase c = random_case(DType::kF32, 0, 8, 130, 6);
  for (bool both : {true, false}) {
    LossRun got(c, {});
    if (both) {
      got.forward_backward(exec());
    } else {
      got.forward(exec());
      got.backward(exec());
    }
    EXPECT_EQ(got.loss[0], 0);
    for (const Array* a : {&got.dweight, &got.dbias})
      for (int64_t i = 0; i < a->size(); ++i) ASSERT_EQ((*a)[i], 0);
  }
}

TEST_P(LinearCrossEntropyLaws, Law5_IgnoredRowsAccumulateNothing) {
  LossCase c = random_case(DType::kF32, 50, 8, 130, 7);
  c.labels.assign(c.rows, c.ignore_index);
  LossRun got(c, {.accumulate = true});
  got.forward_backward(exec());
  for (const Array* a : {&got.dx, &got.dweight, &got.dbias})
    for (int64_t i = 0; i < a->size(); ++i) ASSERT_EQ((*a)[i], 0.5);
}

TEST_P(LinearCrossEntropyLaws, Law5_AFirstChunkWithoutValidRowsStillOverwrites) {
  LossCase c = random_case(DType::kF32, 60, 8, 130, 8);
  for (int64_t i = 0; i < 40; ++i) c.labels[i] = c.ignore_index;
  check_case(exec(), c);
}

TEST_P(LinearCrossEntropyLaws, Law6_OutOfRangeLabelsAreIgnoredAndCounted) {
  LossCase c = random_case(DType::kF32, 40, 8, 130, 9);
  c.labels[0] = 130, c.labels[3] = -1, c.labels[5] = -101, c.labels[7] = std::numeric_limits<int32_t>::max();
  c.labels[9] = std::numeric_limits<int32_t>::min(), c.labels[39] = 131;
  for (IndexType index : {IndexType::kI32, IndexType::kI64}) check_case(exec(), c, {.index = index});
  c.labels[11] = std::numeric_limits<int64_t>::max(), c.labels[12] = std::numeric_limits<int64_t>::min();
  c.labels[13] = (int64_t{1} << 32) + 5;  // not 5
  check_case(exec(), c);
  EXPECT_EQ(reference_linear_cross_entropy(c).out_of_range, 9);
}

TEST_P(LinearCrossEntropyLaws, Law7_ANanRowPoisonsItselfAlone) {
  LossCase c = random_case(DType::kF32, 40, 8, 2100, 10);
  c.labels[17] = 3;
  LossAnswer want = reference_linear_cross_entropy(c);
  for (double bad : {std::nan(""), kInf, -kInf}) {
    LossCase poisoned = c;
    poisoned.x[17 * c.hidden + 2] = bad;
    for (size_t budget : {size_t{128} << 20, size_t{64} << 10}) {
      LossRun got(poisoned, {.budget_bytes = budget});
      got.forward_backward(exec());
      for (int64_t i = 0; i < c.rows; ++i) {
        EXPECT_EQ(std::isnan(got.row_loss[i]), i == 17) << i;
        for (int64_t h = 0; h < c.hidden; ++h) {
          if (i == 17)
            EXPECT_TRUE(std::isnan(got.dx[i * c.hidden + h]));
          else
            EXPECT_NEAR(got.dx[i * c.hidden + h], want.dx[i * c.hidden + h], 1e-6);
        }
      }
      EXPECT_TRUE(std::isnan(got.loss[0]));
    }
  }
}

TEST_P(LinearCrossEntropyLaws, Law7_NanInAnIgnoredRowReachesNothing) {
  LossCase c = random_case(DType::kF32, 40, 8, 700, 11);
  c.labels[17] = c.ignore_index, c.labels[20] = 700;
  LossAnswer want = reference_linear_cross_entropy(c);
  for (int64_t h = 0; h < c.hidden; ++h) c.x[17 * c.hidden + h] = std::nan(""), c.x[20 * c.hidden + h] = kInf;
  for (size_t budget : {size_t{128} << 20, size_t{64} << 10}) {
    LossSetup s{.budget_bytes = budget};
    LossRun got(c, s);
    got.forward_backward(exec());
    expect_loss(got, want, s.dtype);
    expect_gradients(got, want);
  }
}

TEST_P(LinearCrossEntropyLaws, Law7_ARowOfMinusInfinityIsNan) {
  LossCase c = random_case(DType::kF32, 6, 1, 600, 12, 1, false);
  for (double& w : c.weight) w = std::fabs(w) + 0.1;
  c.labels.assign(c.rows, 4);
  c.x[2] = -kInf;  // all its logits are -inf
  for (size_t budget : {size_t{1} << 20, size_t{8} << 10}) {
    LossRun got(c, {.budget_bytes = budget});
    got.forward_backward(exec());
    for (int64_t i = 0; i < c.rows; ++i) {
      EXPECT_EQ(std::isnan(got.row_loss[i]), i == 2);
      EXPECT_EQ(std::isnan(got.dx[i]), i == 2);
    }
  }
}

// Micro-batches of unequal valid counts, summed with the global denominator, are the whole batch.
TEST_P(LinearCrossEntropyLaws, Law8_TokenMeanForAnySplit) {
  LossCase c = random_case(DType::kF32, 90, 16, 130, 13);
  for (int64_t i = 0; i < 25; ++i) c.labels[i] = c.ignore_index;
  LossAnswer want = reference_linear_cross_entropy(c);
  Scalar<int64_t> n_valid(-1);
  Scalar<double> weight_sum(-1), loss_total(0);
  Array dweight(DType::kF32, c.vocab * c.hidden), dx(DType::kF32, c.rows * c.hidden);
  std::vector<std::pair<int64_t, int64_t>> parts = {{0, 7}, {7, 31}, {31, 88}, {88, 90}};
  auto part_of = [&](int64_t begin, int64_t end) {
    LossCase part = c;
    part.rows = end - begin;
    part.x.assign(c.x.begin() + begin * c.hidden, c.x.begin() + end * c.hidden);
    part.labels.assign(c.labels.begin() + begin, c.labels.begin() + end);
    return part;
  };
  for (auto [begin, end] : parts) {
    LossCase part = part_of(begin, end);
    LossRun run_part(part, {});
    run(exec(), LossCount{.targets = run_part.inputs().targets,
                          .rows = part.rows,
                          .vocab_global = part.vocab,
                          .n_valid = n_valid.data(),
                          .weight_sum = weight_sum.data(),
                          .accumulate = begin > 0});
  }
  EXPECT_EQ(n_valid, want.n_valid);
  EXPECT_EQ(weight_sum, static_cast<double>(want.n_valid));
  for (auto [begin, end] : parts) {
    LossCase part = part_of(begin, end);
    part.divisor = weight_sum;
    LossRun run_part(part, {.by_pointer = true});
    LinearCrossEntropyForwardBackward call = call_of(run_part, size_t{1} << 20);
    call.out.loss_total = loss_total.data();
    call.grad.dweight = dweight.data();
    call.grad.accumulate_dweight = begin > 0;
    call.grad.dx = static_cast<float*>(dx.data()) + begin * c.hidden;
    call.grad.dbias = nullptr;
    run_part.launch_with_workspace(exec(), call, call.workspace);
  }
  EXPECT_NEAR(loss_total, want.loss, loss_bar(DType::kF32, want.loss, want.max_logit));
  EXPECT_TRUE(close(dweight, want.dweight, gradient_bar(DType::kF32, want.max_logit)));
  EXPECT_TRUE(close(dx, want.dx, gradient_bar(DType::kF32, want.max_logit)));
}

TEST_P(LinearCrossEntropyLaws, Law9_ABudgetBelowTheMinimumNamesIt) {
  LossCase c = random_case(DType::kBf16, 40, 64, 500, 14);
  LossRun got(c, {.dtype = DType::kBf16});
  LinearCrossEntropyForwardBackward call = call_of(got, 100);
  try {
    workspace_bytes(exec(), call);
    FAIL() << "100 bytes were accepted";
  } catch (const Error& error) {
    std::string text = error.what();
    call.workspace.budget_bytes = std::stoull(text.substr(text.find("at least ") + 9));
  }
  EXPECT_EQ(workspace_bytes(exec(), call), call.workspace.budget_bytes);
  LossSetup s{.dtype = DType::kBf16, .budget_bytes = call.workspace.budget_bytes};
  LossRun small(c, s);
  small.forward_backward(exec());
  expect_gradients(small, reference_linear_cross_entropy(c));
}

TEST_P(LinearCrossEntropyLaws, Law9_MisuseIsAnError) {
  LossCase c = random_case(DType::kF32, 40, 64, 500, 15);
  LossRun got(c, {});
  Vector<char> scratch(64 << 20);
  LinearCrossEntropyForwardBackward good = call_of(got, size_t{64} << 20);
  good.workspace.data = scratch.data();
  good.workspace.size_bytes = scratch.size();
  run(exec(), good);
  auto expect_error = [&](auto&& spoil) {
    LinearCrossEntropyForwardBackward bad = good;
    spoil(bad);
    EXPECT_THROW(run(exec(), bad), Error);
  };
  expect_error([](auto& a) { a.workspace.data = nullptr; });
  expect_error([](auto& a) { a.workspace.size_bytes = 1000; });
  expect_error([](auto& a) { a.in.rows = -1; });
  expect_error([](auto& a) { a.in.hidden = 0; });
  expect_error([](auto& a) { a.in.vocab = 0; });
  expect_error([](auto& a) { a.in.ldx = 63; });
  expect_error([](auto& a) { a.in.ldw = 63; });
  expect_error([](auto& a) { a.in.x = nullptr; });
  expect_error([](auto& a) { a.in.weight = nullptr; });
  expect_error([](auto& a) { a.in.targets.index = nullptr; });
  expect_error([](auto& a) { a.in.shard_offset = -1; });
  expect_error([](auto& a) { a.in.shard_offset = 1; });    // a shard alone knows no loss
  expect_error([](auto& a) { a.in.vocab_global = 501; });  // likewise
  double d = 3;
  expect_error([&](auto& a) { a.options.reduction = Reduction::kSum, a.options.denominator = &d; });
}

}  // namespace
}  // namespace xce::test

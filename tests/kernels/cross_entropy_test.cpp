// Cross-entropy over given logits against the fp64 reference, in place and not, and its laws.
#include "kernels/cross_entropy/cross_entropy.h"

#include <gtest/gtest.h>

#include "tests/support/cross_entropy_harness.h"
#include "tests/support/device_test.h"

namespace xce::test {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity(), kNan = std::numeric_limits<double>::quiet_NaN();
constexpr DType kDTypes[] = {DType::kF32, DType::kBf16, DType::kF16, DType::kF64};

// fp16's gradients of a mean would be subnormal: they are scaled up, as a loss scale does.
LogitsCase random_logits(DType dtype, int64_t rows, int64_t vocab, uint64_t seed, double spread = 2) {
  LogitsCase l = LogitsCase::random(dtype, rows, vocab, seed, spread);
  if (dtype == DType::kF16) l.c.upstream = {1024};
  return l;
}

// forward + backward and both in one call, into dlogits and in place, with results that need all of a row's statistics
// and without, everything compared.
void check_case(const LogitsCase& l, LossSetup s) {
  const LossAnswer want = l.answer();
  for (bool row_results : {true, false}) {
    for (bool in_place : {false, true}) {
      s.in_place = in_place;
      for (const Exec& exec : all_execs()) {
        CrossEntropyRun two(l, s), both(l, s), fresh(l, s);
        two.with_row_results = both.with_row_results = row_results;
        two.forward(exec);
        expect_loss(two, want, s.dtype);
        EXPECT_TRUE(two.logits.same_bits(fresh.logits));
        two.backward(exec);
        expect_gradients(two, want);
        both.forward_backward(exec);
        expect_loss(both, want, s.dtype);
        expect_gradients(both, want);
        EXPECT_TRUE(both.inputs_equal(fresh));
        EXPECT_EQ(both.logits.same_bits(fresh.logits), !in_place);
      }
    }
  }
}

TEST(CrossEntropy, Shapes) {
  for (DType dtype : kDTypes)
    for (auto [n, v] : {std::pair{1, 1}, {1, 2}, {7, 7}, {127, 513}, {31, 1024}, {31, 1025}, {5, 50257}})
      check_case(random_logits(dtype, n, v, n + v), {.dtype = dtype});
}

TEST(CrossEntropy, OptionsAndLeadingDimensions) {
  for (DType dtype : kDTypes) {
    for (Reduction reduction : {Reduction::kNone, Reduction::kMean, Reduction::kSum}) {
      LogitsCase l = random_logits(dtype, 41, 1300, 3);
      l.c.z_loss = 0.001;
      l.c.own_mean = reduction == Reduction::kMean;
      l.c.divisor = 1;
      l.c.labels[3] = 1300, l.c.labels[4] = -1, l.c.labels[5] = std::numeric_limits<int64_t>::min();
      l.c.upstream = reduction == Reduction::kNone ? Array::normal(DType::kF32, 41, 4).values()
                     : dtype == DType::kF16        ? std::vector<double>{-2048}
                                                   : std::vector<double>{-2};
      check_case(l, {.dtype = dtype, .reduction = reduction, .pad_x = 3, .pad_dx = 3});
    }
    LogitsCase l = random_logits(dtype, 41, 130, 5);
    l.c.own_mean = false;
    l.c.divisor = 77;
    check_case(l, {.dtype = dtype, .by_pointer = true});
  }
}

TEST(CrossEntropy, ExtremeLogits) {
  for (DType dtype : kDTypes) {
    for (double shift : {-1000.0, 128.0, -8192.0, 8192.0}) {
      LogitsCase l = random_logits(dtype, 20, 1500, 6);
      for (double& z : l.y) z = shift;
      check_case(l, {.dtype = dtype});
    }
    LogitsCase peaked = random_logits(dtype, 20, 1500, 7);
    for (int64_t i = 0; i < 20; ++i) peaked.y[i * 1500 + 700] = 96;
    for (int64_t i = 0; i < 20; i += 2) peaked.c.labels[i] = 700;
    check_case(peaked, {.dtype = dtype});
  }
}

TEST(CrossEntropy, OneFiniteLogitAmongMinusInfinity) {
  LogitsCase l = random_logits(DType::kF32, 4, 2100, 8);
  l.c.labels = {1050, 1050, 1050, -100};
  for (double& z : l.y) z = -kInf;
  for (int64_t i = 0; i < 4; ++i) l.y[i * 2100 + 1050] = -3;
  check_case(l, {});
}

class CrossEntropyDevice : public DeviceTest {};
INSTANTIATE_TEST_SUITE_P(Devices, CrossEntropyDevice, ::testing::ValuesIn(device_names()), device_name);

TEST_P(CrossEntropyDevice, Law3_BitwiseRepeatable) {
  LogitsCase l = random_logits(DType::kBf16, 100, 1500, 9);
  CrossEntropyRun first(l, {.dtype = DType::kBf16});
  first.forward_backward(exec());
  for (int repeat = 0; repeat < 3; ++repeat) {
    CrossEntropyRun again(l, {.dtype = DType::kBf16});
    again.forward_backward(exec());
    EXPECT_TRUE(again.loss.same_bits(first.loss));
    EXPECT_TRUE(again.dlogits.same_bits(first.dlogits));
  }
}

TEST_P(CrossEntropyDevice, Law5_AllIgnoredOrNoRowsGiveZero) {
  for (int64_t rows : {0, 9}) {
    LogitsCase l = random_logits(DType::kF32, rows, 50, 10);
    l.c.labels.assign(rows, -100);
    l.y.assign(l.y.size(), kInf);
    CrossEntropyRun got(l, {});
    got.forward_backward(exec());
    EXPECT_EQ(got.loss[0], 0);
    EXPECT_EQ(got.n_valid, 0);
    for (int64_t i = 0; i < got.dlogits.size(); ++i) ASSERT_EQ(got.dlogits[i], 0);
  }
}

TEST_P(CrossEntropyDevice, Law7_NanAndMinusInfinityPoisonTheirOwnRow) {
  LogitsCase l = random_logits(DType::kF32, 5, 1500, 11);
  l.c.labels = {1, 2, 3, -100, 5};
  l.y[1 * 1500 + 1400] = std::nan("");
  for (int64_t v = 0; v < 1500; ++v) l.y[2 * 1500 + v] = -kInf;
  l.y[3 * 1500] = std::nan("");  // ignored
  CrossEntropyRun got(l, {});
  got.forward_backward(exec());
  for (int64_t i = 0; i < 5; ++i) {
    EXPECT_EQ(std::isnan(got.row_loss[i]), i == 1 || i == 2) << i;
    for (int64_t v = 0; v < 1500; ++v) ASSERT_EQ(std::isnan(got.dlogit(i, v)), i == 1 || i == 2) << i;
  }
}

TEST_P(CrossEntropyDevice, WrongGradientsFail) {
  LogitsCase l = random_logits(DType::kBf16, 300, 1000, 12);
  l.c.upstream = {-2};
  const LossAnswer want = l.answer();
  CrossEntropyRun got(l, {.dtype = DType::kBf16});
  got.forward_backward(exec());
  std::vector<double> values = got.dlogits.values();
  double bar = gradient_bar(DType::kBf16, want.max_logit);
  EXPECT_LE(relative_l2(values, want.dlogits), bar);
  for (double factor : {0.0, -1.0, -0.5}) {  // zeroed, sign-flipped, upstream ignored
    std::vector<double> wrong = values;
    for (double& g : wrong) g *= factor;
    EXPECT_GT(relative_l2(wrong, want.dlogits), bar);
  }
}

// Two shards, the second padded: statistics, merge, loss, then each one's gradient.
TEST_P(CrossEntropyDevice, ShardsEqualTheWhole) {
  LogitsCase l = random_logits(DType::kF32, 30, 100, 13);
  const LossAnswer want = l.answer();
  CrossEntropyRun whole(l, {});
  Vector<double> sets(2 * kLossStatistics * 30, kNan), merged(kLossStatistics * 30, kNan);
  Array padded(DType::kF32, 30 * 64), right(DType::kF32, 30 * 64);
  for (int64_t i = 0; i < 30; ++i)
    for (int64_t v = 64; v < 100; ++v) padded.set(i * 64 + v - 64, l.y[i * 100 + v]);
  CrossEntropyInputs part[2] = {whole.inputs(), whole.inputs()};
  part[0].vocab = 64, part[0].ld = 100, part[0].vocab_global = 100;
  part[1].logits = padded.data(), part[1].vocab = 64, part[1].shard_offset = 64, part[1].vocab_global = 100;
  for (int k : {0, 1}) {
    CrossEntropyForward args{
        .in = part[k], .options = {}, .out = {}, .statistics = sets.data() + k * kLossStatistics * 30};
    whole.launch_with_workspace(exec(), args);
    args.out.loss = whole.loss.data();
    EXPECT_THROW(whole.launch_with_workspace(exec(), args), Error);
  }
  run(exec(), LossMergeStatistics{.sets = sets.data(), .merged = merged.data(), .count = 2, .rows = 30});
  run(exec(), LossFromStatistics{.statistics = merged.data(),
                                 .targets = part[0].targets,
                                 .rows = 30,
                                 .vocab_global = 100,
                                 .dtype = DType::kF32,
                                 .options = {},
                                 .out = whole.outputs()});
  for (int k : {0, 1})
    whole.launch_with_workspace(exec(), CrossEntropyBackward{.in = part[k],
                                                             .options = {},
                                                             .offset = whole.offset.data(),
                                                             .logsum = whole.logsum.data(),
                                                             .upstream = {},
                                                             .dlogits = k == 0 ? whole.dlogits.data() : right.data(),
                                                             .ld_dlogits = k == 0 ? 100 : 0});
  for (int64_t i = 0; i < 30; ++i) {
    for (int64_t v = 64; v < 100; ++v) whole.dlogits.set(i * 100 + v, right[i * 64 + v - 64]);
    for (int64_t v = 36; v < 64; ++v) ASSERT_EQ(right[i * 64 + v], 0);
  }
  expect_loss(whole, want, DType::kF32);
  expect_gradients(whole, want);
}

}  // namespace
}  // namespace xce::test

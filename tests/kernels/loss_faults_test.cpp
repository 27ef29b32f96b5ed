// Faults that losses of this kind have had in public, each by its name: none of them may happen in either operation.
// Offsets beyond 2^31 elements: cross_entropy_large_test.cpp; counts that the host reads, which break a capture:
// loss_graph_test_cuda.cpp.
#include <gtest/gtest.h>

#include "tests/support/cross_entropy_harness.h"
#include "tests/support/device_test.h"
#include "tests/support/loss_harness.h"
#include "tests/support/loss_options.h"
#include "tests/support/loss_shards.h"

namespace xce::test {
namespace {

constexpr DType kDTypes[] = {DType::kF32, DType::kBf16, DType::kF16, DType::kF64};

class LossFaults : public DeviceTest {
 protected:
  // Both operations, both ways of each.
  void check(const LossCase& c, LossSetup s, const std::vector<double>& logits = {}) const {
    const LossAnswer want = reference_linear_cross_entropy(c);
    LossRun both(c, s), two(c, s);
    both.forward_backward(exec());
    two.forward(exec());
    two.backward(exec());
    for (const LossRun* got : {&both, &two}) {
      expect_loss(*got, want, s.dtype);
      expect_gradients(*got, want);
    }
    const LogitsCase l{c, logits.empty() ? rounded(s.dtype, reference_logits(c)) : logits};
    const LossAnswer of_logits = l.answer();
    CrossEntropyRun plain(l, s), plain_two(l, s);
    plain.forward_backward(exec());
    plain_two.forward(exec());
    plain_two.backward(exec());
    for (const CrossEntropyRun* got : {&plain, &plain_two}) {
      expect_loss(*got, of_logits, s.dtype);
      expect_gradients(*got, of_logits);
    }
  }
};
INSTANTIATE_TEST_SUITE_P(Devices, LossFaults, ::testing::ValuesIn(device_names()), device_name);

double error_of(const Array& got, const std::vector<double>& want) {
  return relative_l2(got.values(), want);
}

TEST_P(LossFaults, UpstreamOfReductionNoneIsNotItsFirstElement) {
  for (DType dtype : kDTypes) {
    LossCase c = random_case(dtype, 40, 8, 130, 1);
    LossSetup s{.dtype = dtype};
    options::row_upstream(c, s, 1);
    c.upstream[0] = 0;
    check(c, s);
    c.upstream[0] = 64;
    check(c, s);
  }
}

// The scalar lies alone: beside it NaN, which any element but that one would bring in.
TEST_P(LossFaults, ExpandedUpstreamIsNotReadPastItsElement) {
  LossCase c = random_case(DType::kF32, 40, 8, 130, 2);
  LossSetup s;
  options::reduction(c, s, Reduction::kNone);
  c.upstream = {-1.5};
  const LossAnswer want = reference_linear_cross_entropy(c);
  Array storage(DType::kF32, 3);
  storage.set(1, -1.5);
  const LossUpstream upstream{.gradient = static_cast<const float*>(storage.data()) + 1, .stride = 0};
  LossRun got(c, s);
  LinearCrossEntropyForwardBackward args{.in = got.inputs(),
                                         .options = got.options(),
                                         .out = got.outputs(),
                                         .upstream = upstream,
                                         .grad = got.gradients(),
                                         .workspace = {}};
  got.launch_with_workspace(exec(), args, args.workspace);
  expect_gradients(got, want);
  const LogitsCase l{c, Array::normal(DType::kF32, 40 * 130, 3).values()};
  CrossEntropyRun plain(l, s);
  CrossEntropyForwardBackward plain_args = plain.both_call();
  plain_args.upstream = upstream;
  plain.launch_with_workspace(exec(), plain_args);
  expect_gradients(plain, l.answer());
}

// Many chunks (on a CPU one for each row) of bf16 inputs: the error of dW is that of one chunk. Kept in bf16, each sum
// would lose what is below 2^-9 of it, and rows that pull alike would stop counting.
TEST_P(LossFaults, DweightOverManyChunksIsNotSummedInBf16) {
  for (DType dtype : {DType::kBf16, DType::kF16}) {
    LossCase c = random_case(dtype, 3000, 8, 40, 4);
    for (double& x : c.x) x = std::fabs(x);
    for (int64_t& label : c.labels) label = label < 0 ? label : label % 4;
    const LossAnswer want = reference_linear_cross_entropy(c);
    LossSetup s{.dtype = dtype};
    LossRun one(c, s);
    one.forward_backward(exec());
    s.budget_factor = on_gpu() ? 20 : 1;
    LossRun many(c, s);
    many.forward_backward(one_thread());
    expect_gradients(one, want);
    expect_gradients(many, want);
    EXPECT_LE(error_of(many.dweight, want.dweight), 2 * error_of(one.dweight, want.dweight) + 2e-6);
    EXPECT_LE(error_of(many.dbias, want.dbias), 2 * error_of(one.dbias, want.dbias) + 2e-6);
  }
}

// One rounding of dx, however the vocabulary is cut.
TEST_P(LossFaults, DxOverVocabularyTilesIsNotSummedInBf16) {
  LossCase c = random_case(DType::kBf16, 24, 16, 20000, 5);
  for (double& w : c.weight) w = std::fabs(w);  // no part of the sum cancels another
  c.weight = rounded(DType::kBf16, c.weight);
  const LossAnswer want = reference_linear_cross_entropy(c);
  LossSetup s{.dtype = DType::kBf16};
  LossRun whole(c, s);
  whole.forward_backward(exec());
  s.budget_factor = 1;
  LossRun cut(c, s);
  cut.forward_backward(one_thread());
  for (const LossRun* got : {&whole, &cut}) expect_gradients(*got, want);
  EXPECT_LE(error_of(cut.dx, want.dx), 1.2 * error_of(whole.dx, want.dx) + 1e-4);
}

// Micro-batches of 3, 27 and 10 rows: their gradients by the global count, accumulated, are the whole batch's.
TEST_P(LossFaults, AccumulatedStepsAreNoMeanOfMeans) {
  LossCase c = random_case(DType::kF32, 40, 8, 60, 6);
  const LossAnswer want = reference_linear_cross_entropy(c);
  Array dweight(DType::kF32, c.vocab * c.hidden);
  std::vector<double> mean_of_means(dweight.size(), 0.0);
  int64_t begin = 0;
  for (int64_t rows : {3, 27, 10}) {
    LossCase part = c;
    part.rows = rows;
    part.x.assign(c.x.begin() + begin * c.hidden, c.x.begin() + (begin + rows) * c.hidden);
    part.labels.assign(c.labels.begin() + begin, c.labels.begin() + begin + rows);
    const LossAnswer alone = reference_linear_cross_entropy(part);
    for (size_t i = 0; i < mean_of_means.size(); ++i) mean_of_means[i] += alone.dweight[i] / 3;
    LossSetup s;
    options::denominator(part, s, want.weight_sum);
    LossRun run_part(part, s);
    LinearCrossEntropyForwardBackward args{.in = run_part.inputs(),
                                           .options = run_part.options(),
                                           .out = run_part.outputs(),
                                           .upstream = {},
                                           .grad = run_part.gradients(),
                                           .workspace = {}};
    args.grad.dweight = dweight.data();
    args.grad.accumulate_dweight = begin > 0;
    args.grad.dbias = nullptr;
    run_part.launch_with_workspace(exec(), args, args.workspace);
    begin += rows;
  }
  EXPECT_TRUE(close(dweight, want.dweight, gradient_bar(DType::kF32, want.max_logit)));
  EXPECT_GT(relative_l2(mean_of_means, want.dweight), 0.1);
}

TEST_P(LossFaults, SmoothingOfAShardIsOverTheGlobalVocabulary) {
  LossCase c = random_case(DType::kF32, 30, 8, 300, 7);
  c.label_smoothing = 0.3;
  LossCase local = c;  // what a shard's own size would give
  const LossAnswer want = reference_linear_cross_entropy(c);
  local.label_smoothing = 0.3 * 300 / 40;
  EXPECT_GT(relative_l2(reference_linear_cross_entropy(local).dx, want.dx), 0.1);
  for (bool by_chunks : {true, false}) {
    LossShards head(c, {}, {{0, 40}, {40, 200}, {240, 100}});
    by_chunks ? static_cast<void>(head.begin_finish(exec())) : head.forward_then_backward(exec());
    head.expect_equal_to(want);
  }
}

// exp(0) of a column that is none would outweigh all others, which are e^-1000; at +1000 a zero is nothing.
TEST_P(LossFaults, VocabularyNeedNotBeAMultipleOfAnything) {
  for (DType dtype : {DType::kF32, DType::kBf16, DType::kF16}) {
    for (int64_t vocab :
         {1, 2, 3, 5, 7, 15, 17, 31, 33, 63, 65, 127, 129, 255, 257, 511, 513, 1023, 1025, 2049, 4099}) {
      for (double level : {-1000.0, 1000.0}) {
        SCOPED_TRACE(str(name_of(dtype), " V ", vocab, " logits ", level));
        LossCase c = random_case(dtype, 5, 4, vocab, 8);
        c.bias.assign(vocab, level);
        c.x.assign(c.x.size(), 0);
        c.labels = {0, vocab - 1, vocab / 2, -100, 0};
        LossSetup s{.dtype = dtype, .by_terms = true};
        check(c, s);
        if (vocab == 129) {
          s.budget_factor = 1;
          check(c, s);
        }
      }
    }
  }
}

// H, V and N are cut into tiles and chunks; the bias is added, and its gradient summed, once.
TEST_P(LossFaults, BiasIsAddedOnceWhateverTheTiles) {
  for (DType dtype : {DType::kF32, DType::kBf16}) {
    LossCase c = random_case(dtype, 70, 200, 1100, 9);
    c.bias = rounded(dtype, Array::normal(DType::kF64, c.vocab, 10, 3).values());
    const LossAnswer want = reference_linear_cross_entropy(c);
    for (double factor : {1.0, 4.0, 50.0, 1000.0}) {
      LossSetup s{.dtype = dtype, .budget_factor = factor};
      LossRun got(c, s), two(c, s);
      got.forward_backward(one_thread());
      two.forward(one_thread());
      two.backward(one_thread());
      for (const LossRun* run : {&got, &two}) {
        expect_loss(*run, want, dtype);
        expect_gradients(*run, want);
      }
    }
  }
}

// Labels far outside, where a read of logits, weights or class weights, or a write of a gradient, would be far outside
// too; those that int32, uint32 or uint16 would wrap into the vocabulary are not in it.
TEST_P(LossFaults, OutOfRangeLabelsReadAndWriteNothing) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max(), kMost32 = std::numeric_limits<int32_t>::max();
  for (IndexType index : {IndexType::kI32, IndexType::kI64}) {
    LossCase c = random_case(DType::kF32, 40, 8, 130, 11);
    std::vector<int64_t> bad = {130, 131, -1, -101, 65536 + 3, 65535, 32768, kMost32, -kMost32 - 1, 1 << 30};
    if (index == IndexType::kI64)
      bad.insert(bad.end(), {kMost, -kMost - 1, (int64_t{1} << 32) + 3, -(int64_t{1} << 32) + 3, int64_t{1} << 62});
    for (size_t k = 0; k < bad.size(); ++k) c.labels[2 * k] = bad[k];
    LossSetup s{.index = index};
    options::class_weights(c, s);
    for (double smoothing : {0.0, 0.1}) {
      c.label_smoothing = smoothing;
      const LossAnswer want = reference_linear_cross_entropy(c);
      EXPECT_EQ(want.out_of_range, std::ssize(bad));
      EXPECT_EQ(want.first_out_of_range, 0);
      check(c, s);
      LossShards head(c, s, {{0, 50}, {50, 60}, {110, 60}});
      head.begin_finish(exec());
      head.expect_equal_to(want);
    }
  }
}

TEST_P(LossFaults, LabelsBeyondUint16AreThemselves) {
  LossCase c = random_case(DType::kF32, 6, 4, 70000, 12);
  c.labels = {65536, 65537, 69999, 1, 65535, 4464};
  for (IndexType index : {IndexType::kI32, IndexType::kI64}) check(c, {.index = index});
}

// No atomics, whose order would show: sums with many terms of both signs, from several threads.
TEST_P(LossFaults, ResultsDoNotVaryFromRunToRun) {
  LossCase c = random_case(DType::kBf16, 300, 16, 600, 13);
  LossSetup s{.dtype = DType::kBf16};
  options::class_weights(c, s), options::token_weights(c, s), c.label_smoothing = 0.1;
  const LogitsCase l{c, Array::normal(DType::kBf16, 300 * 600, 14).values()};
  LossRun first(c, s);
  CrossEntropyRun first_plain(l, s);
  first.forward_backward(exec());
  first_plain.forward_backward(exec());
  for (int repeat = 0; repeat < 10; ++repeat) {
    LossRun again(c, s);
    again.forward_backward(exec());
    for (auto [a, b] : {std::pair{&first.loss, &again.loss},
                        {&first.dx, &again.dx},
                        {&first.dweight, &again.dweight},
                        {&first.dbias, &again.dbias}})
      ASSERT_TRUE(a->same_bits(*b));
    CrossEntropyRun plain(l, s);
    plain.forward_backward(exec());
    ASSERT_TRUE(plain.dlogits.same_bits(first_plain.dlogits));
    ASSERT_TRUE(plain.loss.same_bits(first_plain.loss));
  }
}

}  // namespace
}  // namespace xce::test

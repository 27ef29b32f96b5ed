// The laws of the losses (kernels/linear_cross_entropy/README.md) 1 to 6 for every option of both of them.
#include <gtest/gtest.h>

#include "tests/support/cross_entropy_harness.h"
#include "tests/support/device_test.h"
#include "tests/support/loss_harness.h"
#include "tests/support/loss_options.h"

namespace xce::test {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
class LossLaws : public DeviceTest {};
INSTANTIATE_TEST_SUITE_P(Devices, LossLaws, ::testing::ValuesIn(device_names()), device_name);

constexpr double kKept = 1000, kRecomputed = 6;  // times the least budget

// What a call reads through pointers may change between two runs of the same arguments, as between a graph's replays.
TEST_P(LossLaws, Law1_ReadsWhatChangesInPlaceWhenItRuns) {
  LossCase c = random_case(DType::kF32, 20, 8, 60, 1), changed = c;
  for (LossCase* one : {&c, &changed}) {
    LossSetup s;
    options::class_weights(*one, s), options::token_weights(*one, s), options::denominator(*one, s, 9);
    one->upstream = {1};
  }
  for (int64_t i = 0; i < 20; ++i) changed.labels[i] = i % 4 == 0 ? changed.ignore_index : i * 3;
  for (double& w : changed.class_weights) w += 0.5;
  changed.class_weights = rounded(DType::kF32, changed.class_weights);
  for (double& u : changed.token_weights) u = u == 0 ? 1 : 0.25;
  changed.upstream = {-3}, changed.divisor = 5;
  LossSetup s{.by_pointer = true};
  LossRun run_twice(c, s);
  LinearCrossEntropyForwardBackward args{.in = run_twice.inputs(),
                                         .options = run_twice.options(),
                                         .out = run_twice.outputs(),
                                         .upstream = run_twice.upstream(),
                                         .grad = run_twice.gradients(),
                                         .workspace = {}};
  run_twice.launch_with_workspace(exec(), args, args.workspace);
  expect_loss(run_twice, reference_linear_cross_entropy(c), s.dtype);
  run_twice.replace_values(changed);
  run_twice.loss_total.set(0);
  run_twice.launch_with_workspace(exec(), args, args.workspace);
  const LossAnswer want = reference_linear_cross_entropy(changed);
  expect_loss(run_twice, want, s.dtype);
  expect_gradients(run_twice, want);
}

TEST_P(LossLaws, Law2_ErrorDoesNotDependOnTheNumberOfChunks) {
  for (OptionCase& o : every_option(DType::kBf16, 130, 16, 300, 2)) {
    SCOPED_TRACE(o.name);
    const LossAnswer want = reference_linear_cross_entropy(o.c);
    for (double factor : {on_gpu() ? 5.0 : 1.0, 2.0, 10.0, kKept}) {
      o.s.budget_factor = factor;
      LossRun got(o.c, o.s);
      got.forward_backward(one_thread());
      expect_loss(got, want, o.s.dtype);
      expect_gradients(got, want);
    }
  }
}

// Logits between 256 and 512 are 2 apart in bf16; their lse is right to 1e-4.
TEST_P(LossLaws, Law2_LogitsReachTheSoftmaxUnrounded) {
  for (DType dtype : {DType::kBf16, DType::kF16}) {
    LossCase c = random_case(dtype, 40, 64, 500, 3);
    for (double& b : c.bias) b = 300;
    c.bias = rounded(dtype, c.bias);
    LossRun got(c, {.dtype = dtype});
    got.forward(exec());
    expect_loss(got, reference_linear_cross_entropy(c), dtype);
  }
}

TEST_P(LossLaws, Law3_BitwiseRepeatableWithEveryOption) {
  for (DType dtype : {DType::kF32, DType::kBf16}) {
    for (OptionCase& o : every_option(dtype, 60, 16, 700, 4)) {
      SCOPED_TRACE(str(name_of(dtype), " ", o.name));
      for (double factor : {kKept, kRecomputed}) {
        o.s.budget_factor = factor;
        LossRun first(o.c, o.s);
        first.forward_backward(exec());
        for (int repeat = 0; repeat < 2; ++repeat) {
          LossRun again(o.c, o.s);
          again.forward_backward(exec());
          for (auto [a, b] : {std::pair{&first.loss, &again.loss},
                              {&first.row_loss, &again.row_loss},
                              {&first.z_loss, &again.z_loss},
                              {&first.row_entropy, &again.row_entropy},
                              {&first.dx, &again.dx},
                              {&first.dweight, &again.dweight},
                              {&first.dbias, &again.dbias}})
            ASSERT_TRUE(a->same_bits(*b));
          ASSERT_EQ(first.weight_sum, again.weight_sum);
        }
      }
      const LogitsCase l{o.c, Array::normal(dtype, 60 * 700, 5).values()};
      CrossEntropyRun first(l, o.s), again(l, o.s);
      first.forward_backward(exec());
      again.forward_backward(exec());
      ASSERT_TRUE(first.dlogits.same_bits(again.dlogits));
      ASSERT_TRUE(first.loss.same_bits(again.loss));
    }
  }
}

// Padded columns of given logits are NaN: masked after softcap and before the maximum, zero in dlogits.
TEST_P(LossLaws, Law4_PaddedColumnsOfLogitsWithEveryOption) {
  for (OptionCase& o : every_option(DType::kF32, 20, 1, 70, 6)) {
    SCOPED_TRACE(o.name);
    LogitsCase whole{o.c, Array::normal(DType::kF32, 20 * 70, 7, 2).values()}, padded = whole;
    padded.c.vocab = 130;
    padded.y.assign(20 * 130, std::nan(""));
    if (!o.c.probabilities.empty()) padded.c.probabilities.assign(20 * 130, std::nan(""));
    for (int64_t i = 0; i < 20; ++i) {
      for (int64_t v = 0; v < 70; ++v) {
        padded.y[i * 130 + v] = whole.y[i * 70 + v];
        if (!o.c.probabilities.empty()) padded.c.probabilities[i * 130 + v] = o.c.probabilities[i * 70 + v];
      }
    }
    LossAnswer want = whole.answer();
    CrossEntropyRun got(padded, o.s);
    CrossEntropyForwardBackward args = got.both_call();
    args.in.vocab_global = 70;
    got.launch_with_workspace(exec(), args);
    expect_loss(got, want, DType::kF32);
    std::vector<double> dlogits;
    for (int64_t i = 0; i < 20; ++i) {
      for (int64_t v = 0; v < 70; ++v) dlogits.push_back(got.dlogit(i, v));
      for (int64_t v = 70; v < 130; ++v) ASSERT_EQ(got.dlogit(i, v), 0);
    }
    EXPECT_TRUE(close_values(dlogits, want.dlogits, DType::kF32, gradient_bar(DType::kF32, want.max_logit),
                             {want.dlogits_terms, true}));
  }
}

void ignore_all(LossCase& c, const LossSetup& s) {
  c.labels.assign(c.labels.size(), c.ignore_index);
  if (c.labels.empty()) c.token_weights.assign(c.rows, 0);
  c.probabilities.assign(c.probabilities.size(), std::nan(""));
  c.token_weights = rounded(accum_dtype(s.dtype), c.token_weights);
}

TEST_P(LossLaws, Law5_AllRowsIgnoredGiveZeroWithEveryOption) {
  for (DType dtype : {DType::kF32, DType::kF16}) {
    for (OptionCase& o : every_option(dtype, 30, 8, 130, 8)) {
      SCOPED_TRACE(str(name_of(dtype), " ", o.name));
      ignore_all(o.c, o.s);
      const LossAnswer want = reference_linear_cross_entropy(o.c);  // zeros
      o.c.x.assign(o.c.x.size(), kInf);                             // never 0 * inf
      for (double factor : {kKept, kRecomputed}) {
        o.s.budget_factor = factor;
        const Exec device = factor == kKept ? exec_by_turns() : one_thread();
        LossRun got(o.c, o.s), two(o.c, o.s);
        got.forward_backward(device);
        two.forward(device);
        two.backward(device);
        for (const LossRun* run : {&got, &two}) {
          expect_loss(*run, want, dtype);
          for (const Array* a : {&run->dx, &run->dweight, &run->dbias, &run->loss, &run->z_loss})
            for (int64_t i = 0; i < a->size(); ++i) ASSERT_EQ((*a)[i], 0);
        }
      }
      const LogitsCase l{o.c, std::vector<double>(30 * 130, std::nan(""))};
      CrossEntropyRun plain(l, o.s);
      plain.forward_backward(exec());
      expect_loss(plain, want, dtype);
      for (int64_t i = 0; i < plain.dlogits.size(); ++i) ASSERT_EQ(plain.dlogits[i], 0);
    }
  }
}

TEST_P(LossLaws, Law5_NoRowsGiveZeroWithEveryOption) {
  for (OptionCase& o : every_option(DType::kF32, 0, 8, 130, 9)) {
    SCOPED_TRACE(o.name);
    const LossAnswer want = reference_linear_cross_entropy(o.c);
    LossRun both(o.c, o.s), two(o.c, o.s);
    both.forward_backward(exec());
    two.forward(exec());
    two.backward(exec());
    for (const LossRun* run : {&both, &two}) {
      expect_loss(*run, want, o.s.dtype);
      for (const Array* a : {&run->dweight, &run->dbias, &run->loss})
        for (int64_t i = 0; i < a->size(); ++i) ASSERT_EQ((*a)[i], 0);
    }
    const LogitsCase l{o.c, {}};
    CrossEntropyRun plain(l, o.s);
    plain.forward_backward(exec());
    expect_loss(plain, want, o.s.dtype);
  }
}

TEST_P(LossLaws, Law6_OutOfRangeLabelsWithEveryOption) {
  for (OptionCase& o : every_option(DType::kF32, 40, 8, 130, 10)) {
    if (o.c.labels.empty()) continue;
    SCOPED_TRACE(o.name);
    int64_t row = 0;
    for (int64_t label : {int64_t{130}, int64_t{-1}, std::numeric_limits<int64_t>::max(),
                          std::numeric_limits<int64_t>::min(), (int64_t{1} << 32) + 5, int64_t{65536 + 5}})
      o.c.labels[row += 3] = label;
    for (bool poison : {false, true}) {
      o.s.out_of_range_is_nan = poison;
      const LossAnswer want = reference_linear_cross_entropy(o.c);
      EXPECT_EQ(want.out_of_range, 6);
      LossRun got(o.c, o.s);
      got.forward_backward(exec());
      expect_loss(got, want, o.s.dtype);
      expect_gradients(got, want);
      const LogitsCase l{o.c, Array::normal(DType::kF32, 40 * 130, 11).values()};
      CrossEntropyRun plain(l, o.s);
      plain.forward_backward(exec());
      expect_loss(plain, l.answer(), o.s.dtype);
      expect_gradients(plain, l.answer());
    }
  }
}

}  // namespace
}  // namespace xce::test

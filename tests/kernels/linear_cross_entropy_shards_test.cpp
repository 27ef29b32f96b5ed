// A head cut over the vocabulary, with every option: every rank's statistics merged by hand, uneven and padded shards
// against the whole.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/device_test.h"
#include "tests/support/errors.h"
#include "tests/support/loss_options.h"
#include "tests/support/loss_random.h"
#include "tests/support/loss_shards.h"

namespace xce::test {
namespace {

class LinearCrossEntropyShards : public DeviceTest {};
INSTANTIATE_TEST_SUITE_P(Devices, LinearCrossEntropyShards, ::testing::ValuesIn(device_names()), device_name);

constexpr DType kDTypes[] = {DType::kF32, DType::kBf16, DType::kF16, DType::kF64};
const std::vector<std::vector<Part>> kCuts = {
    {{0, 700}},                          // one shard, the whole
    {{0, 350}, {350, 350}},              // even
    {{0, 5}, {5, 600}, {605, 95}},       // uneven
    {{0, 256}, {256, 256}, {512, 256}},  // the last padded
    {{0, 400}, {400, 400}, {800, 400}},  // the last nothing but padding
};

LossCase sharded_case(DType dtype, int64_t rows = 90) {
  LossCase c = random_case(dtype, rows, 16, 700, 21);
  c.labels[0] = 700, c.labels[1] = 701, c.labels[2] = -7;  // in the padding, or nowhere: out of range on every rank
  c.z_loss = 0.001;
  return c;
}

TEST_P(LinearCrossEntropyShards, BeginAndFinishEqualTheWhole) {
  for (DType dtype : kDTypes) {
    LossCase c = sharded_case(dtype);
    LossAnswer want = reference_linear_cross_entropy(c);
    for (const auto& parts : kCuts) {
      for (size_t budget : {size_t{8} << 20, size_t{20} << 10}) {
        SCOPED_TRACE(str(name_of(dtype), " ", parts.size(), " shards, budget ", budget));
        LossShards head(c, {.dtype = dtype, .budget_bytes = budget}, parts);
        int64_t count = head.begin_finish(exec());
        EXPECT_TRUE(on_gpu() || (count == 1) == (budget > (size_t{1} << 20)));
        head.expect_equal_to(want);
      }
    }
  }
}

TEST_P(LinearCrossEntropyShards, ForwardMergeBackwardEqualsTheWhole) {
  for (DType dtype : kDTypes) {
    LossCase c = sharded_case(dtype);
    LossAnswer want = reference_linear_cross_entropy(c);
    for (const auto& parts : kCuts) {
      SCOPED_TRACE(str(name_of(dtype), " ", parts.size(), " shards"));
      LossShards head(c, {.dtype = dtype, .budget_bytes = size_t{60} << 10}, parts);
      head.forward_then_backward(exec());
      head.expect_equal_to(want);
    }
  }
}

TEST_P(LinearCrossEntropyShards, EveryOption) {
  for (DType dtype : {DType::kF32, DType::kBf16}) {
    for (OptionCase& o : cases_of_every_option(dtype, [&] { return sharded_case(dtype, 25); })) {
      o.s.by_terms = true;
      o.s.pad_probabilities = 0;
      const LossAnswer want = reference_linear_cross_entropy(o.c);
      for (int k : {2, 3, 4}) {
        SCOPED_TRACE(str(name_of(dtype), " ", o.name, ", cut ", k));
        o.s.budget_bytes = k == 3 ? size_t{40} << 10 : size_t{8} << 20;
        LossShards both(o.c, o.s, kCuts[k]), two(o.c, o.s, kCuts[k]);
        const Exec device = k == 2 ? exec_by_turns() : one_thread();
        both.begin_finish(device);
        both.expect_equal_to(want);
        two.forward_then_backward(device);
        two.expect_equal_to(want);
      }
    }
  }
}

// Equal logits in several shards: the lowest global label, wherever the merge begins.
TEST_P(LinearCrossEntropyShards, ArgmaxOfTiesAcrossShardsIsTheLowest) {
  LossCase c = random_case(DType::kF32, 30, 8, 700, 22, 1, false);
  // So few bits that every order of a product's sums is exact: shards of other widths may be multiplied otherwise.
  for (std::vector<double>* values : {&c.x, &c.weight})
    for (double& value : *values) value = std::round(value * 64) / 64;
  for (int64_t v = 100; v < c.vocab; ++v)
    for (int64_t h = 0; h < c.hidden; ++h) c.weight[v * c.hidden + h] = c.weight[v % 100 * c.hidden + h];
  const LossAnswer want = reference_linear_cross_entropy(c);
  for (int64_t i = 0; i < c.rows; ++i) {
    ASSERT_LT(want.argmax[i], 100);
    if (i % 3 == 0 && want.argmax[i] >= 0) c.labels[i] = want.argmax[i];
    if (i % 3 == 1 && want.argmax[i] >= 0) c.labels[i] = want.argmax[i] + 300;  // ties with the best, is not it
  }
  const LossAnswer judged = reference_linear_cross_entropy(c);
  for (const std::vector<Part>& parts :
       {std::vector<Part>{{0, 350}, {350, 350}}, {{350, 350}, {0, 350}}, {{100, 300}, {0, 100}, {400, 300}}}) {
    LossShards head(c, {}, parts);
    head.begin_finish(exec());
    for (const auto& rank : head.ranks()) {
      EXPECT_EQ(rank->n_correct, judged.n_correct);
      for (int64_t i = 0; i < c.rows; ++i) EXPECT_EQ(rank->argmax(i), judged.argmax[i]) << i;
    }
  }
}

// A vocabulary padded to a convenient size without any sharding, vocab_global below vocab: its columns (NaN here) are
// masked after softcap, have no mass, and win no argmax.
TEST_P(LinearCrossEntropyShards, Law4_PaddedVocabularyInOneCall) {
  for (OptionCase& o : cases_of_every_option(DType::kF32, [] { return random_case(DType::kF32, 30, 8, 70, 22); })) {
    SCOPED_TRACE(o.name);
    o.s.by_terms = true;
    o.s.pad_probabilities = 58;
    LossAnswer want = reference_linear_cross_entropy(o.c);
    LossCase padded = o.c;
    padded.vocab = 128;
    padded.weight.resize(padded.vocab * o.c.hidden, std::nan(""));
    if (!o.c.bias.empty()) padded.bias.resize(padded.vocab, std::nan(""));
    if (!o.c.probabilities.empty()) {
      padded.probabilities.assign(padded.rows * padded.vocab, std::nan(""));
      for (int64_t i = 0; i < padded.rows; ++i)
        for (int64_t v = 0; v < o.c.vocab; ++v) padded.probabilities[i * 128 + v] = o.c.probabilities[i * 70 + v];
    }
    for (size_t budget : {size_t{8} << 20, size_t{20} << 10}) {
      LossRun got(padded, o.s);
      LinearCrossEntropyForwardBackward call{.in = got.inputs(),
                                             .options = got.options(),
                                             .out = got.outputs(),
                                             .upstream = got.upstream(),
                                             .grad = got.gradients(),
                                             .workspace = {}};
      call.in.vocab_global = 70;
      o.s.budget_bytes = budget;
      got.launch_with_workspace(exec(), call, call.workspace);
      want.dweight.resize(padded.vocab * o.c.hidden, 0.0);
      want.dbias.resize(padded.vocab, 0.0);
      expect_loss(got, want, DType::kF32);
      expect_gradients(got, want);
      for (int64_t v = 70; v < 128; ++v) {
        ASSERT_EQ(got.dbias[v], 0);
        for (int64_t h = 0; h < o.c.hidden; ++h) ASSERT_EQ(got.dweight[v * o.c.hidden + h], 0);
      }
    }
  }
}

// The residual of a shard's own columns does not tell the mass of all.
TEST_P(LinearCrossEntropyShards, BackwardOfAShardsProbabilitiesNeedsTheirMass) {
  LossCase c = random_case(DType::kF32, 10, 8, 40, 23);
  LossSetup s;
  options::probabilities(c, s, DType::kF32);
  LossRun got(c, s);
  LinearCrossEntropyBackward call{.in = got.inputs(),
                                  .options = got.options(),
                                  .offset = got.offset.data(),
                                  .logsum = got.logsum.data(),
                                  .upstream = {},
                                  .grad = got.gradients(),
                                  .workspace = {}};
  call.in.vocab_global = 50;
  EXPECT_THROW(got.launch_with_workspace(exec(), call, call.workspace), Error);
}

// The sum of a shard's own probabilities is not the row's, and the residual does not tell it.
TEST_P(LinearCrossEntropyShards, BackwardWithProbabilitiesAsksForTheirMass) {
  LossCase c = random_case(DType::kF32, 5, 8, 40, 27);
  c.labels.clear();
  c.probabilities.assign(c.rows * c.vocab, 1 / 50.0);
  LossRun got(c, {});
  for (int64_t i = 0; i < c.rows; ++i) got.offset.set(i, 0), got.logsum.set(i, std::log(50.0));
  LinearCrossEntropyBackward call{.in = got.inputs(),
                                  .options = got.options(),
                                  .offset = got.offset.data(),
                                  .logsum = got.logsum.data(),
                                  .upstream = got.upstream(),
                                  .grad = got.gradients(),
                                  .workspace = {}};
  call.in.vocab_global = 50;
  EXPECT_TRUE(throws_error(ErrorCode::kRuntime, {"probability_mass", "null"},
                           [&] { got.launch_with_workspace(exec(), call, call.workspace); }));
  EXPECT_TRUE(std::isnan(got.dx[0])) << "written before the check";
  Vector<double> mass(c.rows, 1);
  call.in.targets.probability_mass = mass.data();
  got.launch_with_workspace(exec(), call, call.workspace);
  for (int64_t i = 0; i < got.dx.size(); ++i) ASSERT_FALSE(std::isnan(got.dx[i])) << i;
}

TEST_P(LinearCrossEntropyShards, RandomCuts) {
  const uint64_t seed = random_seed();
  for (uint64_t k = 0; k < random_cases(on_gpu() ? 60 : 400); ++k) {
    LossDraw draw(seed + k, on_gpu());
    const std::vector<Part> parts = draw.cut();
    draw.s.pad_probabilities = 0, draw.s.accumulate = false, draw.s.omit = 0;
    draw.s.with_dx = draw.s.with_dweight = draw.s.with_dbias = true;
    SCOPED_TRACE(str(parts.size(), " shards, ", draw.describe()));
    const LossAnswer want = reference_linear_cross_entropy(draw.c);
    const Exec device = on_gpu() ? exec() : cpu_exec(draw.threads);
    LossShards both(draw.c, draw.s, parts);
    both.begin_finish(device);
    both.expect_equal_to(want);
    LossShards two(draw.c, draw.s, parts);
    two.forward_then_backward(device);
    two.expect_equal_to(want);
    LossShards logits({draw.c, draw.y}, draw.s, parts);
    logits.logits_forward_then_backward(device);
    logits.expect_logits_equal_to(draw.answer_of_logits());
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace xce::test

// Counting targets, and merging row statistics: against sums over the whole row, empty and poisoned parts included.
#include "kernels/cross_entropy/loss.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/support/array.h"
#include "tests/support/compare.h"
#include "tests/support/device_test.h"

namespace xce::test {
namespace {

class LossCountTest : public DeviceTest {};
class LossMergeStatisticsTest : public DeviceTest {};
class LossFromStatisticsTest : public DeviceTest {};
INSTANTIATE_TEST_SUITE_P(Devices, LossCountTest, ::testing::ValuesIn(device_names()), device_name);
INSTANTIATE_TEST_SUITE_P(Devices, LossMergeStatisticsTest, ::testing::ValuesIn(device_names()), device_name);
INSTANTIATE_TEST_SUITE_P(Devices, LossFromStatisticsTest, ::testing::ValuesIn(device_names()), device_name);

constexpr double kInf = std::numeric_limits<double>::infinity();

TEST_P(LossCountTest, CountsWhatTheLossCallsValid) {
  Vector<int64_t> labels = {0, 9, 10, -1, -100, 5, 5, int64_t{1} << 40};
  Scalar<int64_t> n_valid(-1), out_of_range(-1);
  Scalar<double> weight_sum(-1);
  LossCount args{.targets = {.index = labels.data(), .type = IndexType::kI64},
                 .rows = 8,
                 .vocab_global = 10,
                 .n_valid = n_valid.data(),
                 .weight_sum = weight_sum.data(),
                 .out_of_range = out_of_range.data()};
  run(exec(), args);
  EXPECT_EQ(n_valid, 4);
  EXPECT_EQ(weight_sum, 4);
  EXPECT_EQ(out_of_range, 3);
  args.targets.ignore_index = 5;
  args.accumulate = true;
  run(exec(), args);
  EXPECT_EQ(n_valid, 4 + 2);
  EXPECT_EQ(weight_sum, 4 + 2);
  EXPECT_EQ(out_of_range, 3 + 4);
}

TEST_P(LossCountTest, Int32StridedAndNullOutputs) {
  Vector<int32_t> labels = {3, 77, -100, 77, 4, 77};
  Scalar<int64_t> n_valid(-1);
  run(exec(), LossCount{.targets = {.index = labels.data(), .type = IndexType::kI32, .stride = 2},
                        .rows = 3,
                        .vocab_global = 5,
                        .n_valid = n_valid.data(),
                        .weight_sum = nullptr});
  EXPECT_EQ(n_valid, 2);
}

TEST_P(LossCountTest, WeightsAndTheFirstLabelOutOfRange) {
  Vector<int64_t> labels = {1, 0, -100, 2, 1, 3};
  Vector<float> classes = {0.5f, 2, 0}, tokens = {1, 3, 5, 7, 0, 9};  // label 2 weighs nothing, row 4 is ignored
  Scalar<int64_t> n_valid(-1), out_of_range(-1), first(-7);
  Scalar<double> weight_sum(-1);
  LossCount args{.targets = {.index = labels.data(), .type = IndexType::kI64},
                 .rows = 6,
                 .vocab_global = 3,
                 .n_valid = n_valid.data(),
                 .weight_sum = weight_sum.data(),
                 .out_of_range = out_of_range.data(),
                 .class_weights = classes.data(),
                 .token_weights = tokens.data(),
                 .dtype = DType::kBf16,
                 .first_out_of_range = first.data()};
  run(exec(), args);
  EXPECT_EQ(n_valid, 3);
  EXPECT_EQ(weight_sum, 1 * 2 + 3 * 0.5 + 0);
  EXPECT_EQ(out_of_range, 1);
  EXPECT_EQ(first, 5);
  labels[2] = 4;
  args.accumulate = true;  // an earlier micro-batch has had its first
  run(exec(), args);
  EXPECT_EQ(n_valid, 6);
  EXPECT_EQ(weight_sum, 7);
  EXPECT_EQ(out_of_range, 3);
  EXPECT_EQ(first, 5);
  *first.data() = -1;  // it had none
  run(exec(), args);
  EXPECT_EQ(first, 2);
  labels = {0, 1, 2, 0, 1, 2};
  args.accumulate = false;
  run(exec(), args);
  EXPECT_EQ(first, -1);
}

TEST_P(LossCountTest, ProbabilitiesCountByTokenWeightsInFp64) {
  Vector<double> tokens = {0.25, 0, -3, 1e-9};
  Scalar<int64_t> n_valid(-1);
  Scalar<double> weight_sum(-1);
  // The probabilities are not read; of a shard they are fewer than vocab_global.
  run(exec(),
      LossCount{.targets = {.probabilities = tokens.data(), .probability_type = DType::kF64, .ld_probabilities = 2},
                .rows = 4,
                .vocab_global = 3,
                .n_valid = n_valid.data(),
                .weight_sum = weight_sum.data(),
                .token_weights = tokens.data(),
                .dtype = DType::kF64});
  EXPECT_EQ(n_valid, 3);
  EXPECT_EQ(weight_sum, 0.25 - 3 + 1e-9);
}

// Statistics of z[first, last) with its label's logit and mass a, the definition.
std::vector<double> statistics(const std::vector<double>& z, const std::vector<double>& a, int64_t first, int64_t last,
                               int64_t label) {
  double top = -kInf, sum = 0, mass_logits = 0, mass = 0, entropy = 0, argmax = -1;
  for (int64_t v = first; v < last; ++v) {
    if (argmax < 0 || z[v] > top) argmax = static_cast<double>(v);
    top = std::fmax(top, z[v]);
  }
  for (int64_t v = first; v < last; ++v) {
    if (a[v] != 0) mass_logits += a[v] * (z[v] - top), mass += a[v];
    if (z[v] == -kInf) continue;
    sum += std::exp(z[v] - top);
    entropy += std::exp(z[v] - top) * (z[v] - top);
  }
  return {top, sum, label >= first && label < last ? z[label] : 0, mass_logits, mass, entropy, argmax};
}

// The merge of the cut at `cuts`, as one row.
std::vector<double> merged(const Exec& exec, const std::vector<double>& z, const std::vector<double>& a,
                           const std::vector<int64_t>& cuts, int64_t label) {
  Vector<double> sets, out(kLossStatistics, NAN);
  for (size_t k = 0; k + 1 < cuts.size(); ++k)
    for (double value : statistics(z, a, cuts[k], cuts[k + 1], label)) sets.push_back(value);
  run(exec, LossMergeStatistics{.sets = sets.data(), .merged = out.data(), .count = std::ssize(cuts) - 1, .rows = 1});
  return {out.begin(), out.end()};
}

TEST_P(LossMergeStatisticsTest, Law4_AnyCutGivesTheWhole) {
  std::vector<double> z = Array::normal(DType::kF64, 60, 1, 30).values();
  std::vector<double> a = Array::normal(DType::kF64, 60, 2).values();
  z[3] = -kInf, z[59] = -kInf, a[3] = 0, a[59] = 0, a[7] = 0;
  z[44] = z[22] = *std::max_element(z.begin(), z.end());  // a tie: the lower label
  for (int64_t label : {0, 31, 58}) {
    std::vector<double> want = statistics(z, a, 0, 60, label);
    for (const std::vector<int64_t>& cuts :
         {std::vector<int64_t>{0, 60}, {0, 1, 60}, {0, 20, 40, 60}, {0, 3, 4, 4, 59, 60, 60}}) {
      std::vector<double> got = merged(exec(), z, a, cuts, label);
      EXPECT_EQ(got[0], want[0]);
      EXPECT_NEAR(got[1], want[1], 1e-14 * want[1]);
      EXPECT_EQ(got[2], want[2]);
      EXPECT_NEAR(got[3], want[3], 1e-12 * std::fabs(want[3]));
      EXPECT_NEAR(got[4], want[4], 1e-13);
      EXPECT_NEAR(got[5], want[5], 1e-13 * std::fabs(want[5]));
      EXPECT_EQ(got[6], want[6]);
    }
  }
}

TEST_P(LossMergeStatisticsTest, Law4_EmptyPartsMergeToAnEmptyOne) {
  const std::vector<double> none(9, 0.0);
  std::vector<double> got = merged(exec(), std::vector<double>(9, -kInf), none, {0, 4, 9}, 100);
  EXPECT_EQ(got[0], -kInf);
  for (int k : {1, 2, 3, 4, 5}) EXPECT_EQ(got[k], 0) << k;
  got = merged(exec(), {}, {}, {0, 0, 0}, 100);
  EXPECT_EQ(got[6], -1);
}

TEST_P(LossMergeStatisticsTest, NanOfOnePartSurvives) {
  for (double top : {-kInf, 3.0}) {  // a part of NaN alone has no maximum
    Vector<double> sets = {top, NAN, 0, 0, 0, NAN, -1, 5, 1.5, 2, 0, 0, -0.25, 8};
    Vector<double> out(kLossStatistics, 0.0);
    run(exec(), LossMergeStatistics{.sets = sets.data(), .merged = out.data(), .count = 2, .rows = 1});
    EXPECT_TRUE(std::isnan(out[1]));
    EXPECT_TRUE(std::isnan(out[5]));
    EXPECT_EQ(out[6], 8);
  }
}

TEST_P(LossMergeStatisticsTest, MayOverwriteItsFirstSet) {
  // Two sets of two rows: max, sum, target, sum of a (z - max), sum of a, sum of e (z - max), argmax.
  Vector<double> sets = {1, 2, 1, 1, 0, 7, -4, 0, 2, 0, -0.5,  0, 3,  9,  //
                         3, 2, 1, 1, 5, 0, -1, 0, 1, 0, -0.25, 0, 11, 4};
  run(exec(), LossMergeStatistics{.sets = sets.data(), .merged = sets.data(), .count = 2, .rows = 2});
  EXPECT_EQ(sets[0], 3);
  EXPECT_EQ(sets[1], 2);
  EXPECT_DOUBLE_EQ(sets[2], 1 + std::exp(-2.0));
  EXPECT_DOUBLE_EQ(sets[3], 2);
  EXPECT_EQ(sets[4], 5);
  EXPECT_EQ(sets[5], 7);
  EXPECT_DOUBLE_EQ(sets[6], (-4 + 2 * -2.0) - 1);
  EXPECT_DOUBLE_EQ(sets[8], 3);
  EXPECT_DOUBLE_EQ(sets[10], (-0.5 + 1 * -2.0) * std::exp(-2.0) - 0.25);
  EXPECT_EQ(sets[12], 11);
  EXPECT_EQ(sets[13], 4);  // equal maxima: the lower label
}

TEST_P(LossFromStatisticsTest, LossAndResidualOfOneRow) {
  Vector<double> set = {1000, 2, 998.5, 0, 0, 0, -1}, row_loss(1, NAN), offset(1, NAN), logsum(1, NAN);
  Scalar<int32_t> label(4);
  Scalar<double> loss(NAN);
  run(exec(),
      LossFromStatistics{
          .statistics = set.data(),
          .targets = {.index = label.data()},
          .rows = 1,
          .vocab_global = 5,
          .dtype = DType::kF64,
          .options = {},
          .out = {.loss = loss.data(), .row_loss = row_loss.data(), .offset = offset.data(), .logsum = logsum.data()}});
  EXPECT_NEAR(loss, std::log(2.0) + 1.5, 1e-14);
  EXPECT_EQ(row_loss[0], double{loss});
  EXPECT_EQ(offset[0], 1000);
  EXPECT_NEAR(logsum[0], std::log(2.0), 1e-15);
}

// Token weights, probabilities' own mass, entropy, argmax and the counts, of two rows and an ignored one.
TEST_P(LossFromStatisticsTest, EveryResultOfProbabilities) {
  const double sum = 1 + std::exp(-1.0), mass[2] = {1.5, 0.5}, logits[2] = {-0.75, 0};  // z - max is 0 and -1
  Vector<double> set = {7,
                        -2,
                        -kInf,
                        sum,
                        sum,
                        0,
                        0,
                        0,
                        0,
                        logits[0],
                        logits[1],
                        0,
                        mass[0],
                        mass[1],
                        0,
                        -std::exp(-1.0),
                        -std::exp(-1.0),
                        0,
                        1,
                        0,
                        -1};
  Vector<double> probabilities(6, NAN), weights = {2, -0.5, 0};  // the probabilities themselves are not read
  Vector<double> row_loss(3, NAN), entropy(3, NAN), row_max(3, NAN);
  Vector<int64_t> argmax(3, -7);
  Scalar<double> loss(NAN), z_loss(NAN), weight_sum(NAN), total(10);
  Scalar<int64_t> n_valid(-1), out_of_range(-1), first(-7);
  run(exec(), LossFromStatistics{.statistics = set.data(),
                                 .targets = {.probabilities = probabilities.data(), .probability_type = DType::kF64},
                                 .rows = 3,
                                 .vocab_global = 2,
                                 .dtype = DType::kF64,
                                 .options = {.z_loss = 0.1, .token_weights = weights.data()},
                                 .out = {.loss = loss.data(),
                                         .loss_total = total.data(),
                                         .row_loss = row_loss.data(),
                                         .z_loss = z_loss.data(),
                                         .row_max = row_max.data(),
                                         .row_entropy = entropy.data(),
                                         .argmax = argmax.data(),
                                         .n_valid = n_valid.data(),
                                         .weight_sum = weight_sum.data(),
                                         .out_of_range = out_of_range.data(),
                                         .first_out_of_range = first.data()}});
  const double logsum = std::log(sum), tops[2] = {7, -2};
  double want = 0, want_z = 0;
  for (int i : {0, 1}) {
    const double lse = tops[i] + logsum, z = 0.1 * lse * lse, row = weights[i] * (mass[i] * logsum - logits[i] + z);
    want += row / 1.5, want_z += weights[i] * z / 1.5;
    EXPECT_NEAR(row_loss[i], row, 1e-13);
    EXPECT_NEAR(entropy[i], logsum + std::exp(-1.0) / sum, 1e-14);
    EXPECT_EQ(row_max[i], tops[i]);
    EXPECT_EQ(argmax[i], 1 - i);
  }
  EXPECT_NEAR(loss, want, 1e-13);
  EXPECT_NEAR(total, 10 + want, 1e-13);
  EXPECT_NEAR(z_loss, want_z, 1e-13);
  EXPECT_EQ(weight_sum, 1.5);
  EXPECT_EQ(n_valid, 2);
  EXPECT_EQ(out_of_range, 0);
  EXPECT_EQ(first, -1);
  EXPECT_EQ(row_loss[2], 0);
  EXPECT_EQ(entropy[2], 0);
  EXPECT_EQ(row_max[2], 0);
  EXPECT_EQ(argmax[2], -1);
}

TEST_P(LossFromStatisticsTest, PoliciesAndCorrectLabels) {
  // Rows: right, wrong, out of range.
  Vector<double> set = {0, 0, -kInf, 2, 2, 0, 0, -1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, -1};
  Vector<int64_t> labels = {1, 1, 2};
  Vector<double> row_loss(3, 0.5);
  Scalar<double> loss(0.5);
  Scalar<int64_t> n_correct(-1), first(-7);
  LossFromStatistics args{.statistics = set.data(),
                          .targets = {.index = labels.data(), .type = IndexType::kI64},
                          .rows = 3,
                          .vocab_global = 2,
                          .dtype = DType::kF64,
                          .options = {.out_of_range_is_nan = true},
                          .out = {.loss = loss.data(),
                                  .row_loss = row_loss.data(),
                                  .n_correct = n_correct.data(),
                                  .first_out_of_range = first.data()}};
  run(exec(), args);
  EXPECT_TRUE(std::isnan(loss));
  EXPECT_NEAR(row_loss[0], std::log(2.0), 1e-15);
  EXPECT_NEAR(row_loss[1], std::log(2.0) + 1, 1e-15);
  EXPECT_TRUE(std::isnan(row_loss[2]));
  EXPECT_EQ(n_correct, 1);
  EXPECT_EQ(first, 2);
  args.options.out_of_range_is_nan = false;
  run(exec(), args);
  EXPECT_NEAR(loss, std::log(2.0) + 0.5, 1e-15);
  EXPECT_EQ(row_loss[2], 0);
  for (int64_t& label : labels) label = -100;
  run(exec(), args);
  EXPECT_EQ(loss, 0);
  args.options.empty_is_nan = true;
  run(exec(), args);
  EXPECT_TRUE(std::isnan(loss));
}

}  // namespace
}  // namespace xce::test

// Counting targets, and merging row statistics: against sums over the whole row, empty and poisoned parts included.
#include "kernels/cross_entropy/loss.h"

#include <gtest/gtest.h>

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

// Statistics of z[first, last) with its label's logit, the definition.
std::vector<double> statistics(const std::vector<double>& z, int64_t first, int64_t last, int64_t label) {
  double top = -kInf, sum = 0;
  for (int64_t v = first; v < last; ++v) top = std::fmax(top, z[v]);
  for (int64_t v = first; v < last; ++v) sum += z[v] == -kInf ? 0 : std::exp(z[v] - top);
  return {top, sum, label >= first && label < last ? z[label] : 0};
}

// The merge of the cut at `cuts`, as one row.
std::vector<double> merged(const Exec& exec, const std::vector<double>& z, const std::vector<int64_t>& cuts,
                           int64_t label) {
  std::vector<double> sets;
  for (size_t k = 0; k + 1 < cuts.size(); ++k)
    for (double value : statistics(z, cuts[k], cuts[k + 1], label)) sets.push_back(value);
  Array device(DType::kF64, std::ssize(sets)), out(DType::kF64, 3);
  for (size_t i = 0; i < sets.size(); ++i) device.set(i, sets[i]);
  run(exec,
      LossMergeStatistics{
          .sets = device.data(), .merged = out.data(), .count = std::ssize(cuts) - 1, .rows = 1, .dtype = DType::kF64});
  return out.values();
}

TEST_P(LossMergeStatisticsTest, Law4_AnyCutGivesTheWhole) {
  std::vector<double> z = Array::normal(DType::kF64, 60, 1, 30).values();
  z[3] = -kInf, z[59] = -kInf;
  for (int64_t label : {0, 31, 58}) {
    std::vector<double> want = statistics(z, 0, 60, label);
    for (const std::vector<int64_t>& cuts :
         {std::vector<int64_t>{0, 60}, {0, 1, 60}, {0, 20, 40, 60}, {0, 3, 4, 4, 59, 60, 60}}) {
      std::vector<double> got = merged(exec(), z, cuts, label);
      EXPECT_EQ(got[0], want[0]);
      EXPECT_NEAR(got[1], want[1], 1e-14 * want[1]);
      EXPECT_EQ(got[2], want[2]);
    }
  }
}

TEST_P(LossMergeStatisticsTest, Law4_EmptyPartsMergeToAnEmptyOne) {
  std::vector<double> got = merged(exec(), std::vector<double>(9, -kInf), {0, 4, 9}, 100);
  EXPECT_EQ(got[0], -kInf);
  EXPECT_EQ(got[1], 0);
}

TEST_P(LossMergeStatisticsTest, NanOfOnePartSurvives) {
  for (double top : {-kInf, 3.0}) {  // a part of NaN alone has no maximum
    Vector<double> sets = {top, std::nan(""), 0, 5, 1.5, 2};
    Vector<double> out(3, 0.0);
    run(exec(),
        LossMergeStatistics{.sets = sets.data(), .merged = out.data(), .count = 2, .rows = 1, .dtype = DType::kF64});
    EXPECT_TRUE(std::isnan(out[1]));
  }
}

TEST_P(LossMergeStatisticsTest, MayOverwriteItsFirstSet) {
  Vector<float> sets = {1, 2, 1, 1, 0, 7, 3, 2, 1, 1, 5, 0};  // two sets of two rows
  run(exec(),
      LossMergeStatistics{.sets = sets.data(), .merged = sets.data(), .count = 2, .rows = 2, .dtype = DType::kF32});
  EXPECT_EQ(sets[0], 3);
  EXPECT_EQ(sets[1], 2);
  EXPECT_FLOAT_EQ(sets[2], 1 + std::exp(-2.0f));
  EXPECT_FLOAT_EQ(sets[3], 2);
  EXPECT_EQ(sets[4], 5);
  EXPECT_EQ(sets[5], 7);
}

TEST_P(LossFromStatisticsTest, LossAndResidualOfOneRow) {
  Vector<double> set = {1000, 2, 998.5}, row_loss(1, NAN), offset(1, NAN), logsum(1, NAN);
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

}  // namespace
}  // namespace xce::test

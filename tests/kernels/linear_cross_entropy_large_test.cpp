// N * V above 2^32 in 64 MiB of workspace: every index is 64-bit, and the logits are nowhere whole.
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "kernels/linear_cross_entropy/linear_cross_entropy.h"
#include "tests/support/array.h"
#include "tests/support/device_test.h"

namespace xce::test {
namespace {

constexpr int64_t kRows = 32769, kVocab = 131072, kHidden = 8;

struct Large {
  Vector<float> x = Vector<float>(kRows * kHidden), weight = Vector<float>(kVocab * kHidden);
  Vector<int32_t> labels = Vector<int32_t>(kRows);
  Large() {
    std::mt19937 gen(1);
    std::normal_distribution<float> normal;
    for (float& value : x) value = normal(gen);
    for (float& value : weight) value = normal(gen);
    for (int32_t& label : labels) label = static_cast<int32_t>(gen() % kVocab);
    labels[kRows - 1] = kVocab - 1;
  }
  double logit(int64_t i, int64_t v) const {
    double z = 0;
    for (int64_t h = 0; h < kHidden; ++h)
      z += static_cast<double>(x[i * kHidden + h]) * static_cast<double>(weight[v * kHidden + h]);
    return z;
  }
};

void expect_close(const float* got, const std::vector<double>& want) {
  double error = 0, norm = 0;
  for (size_t h = 0; h < want.size(); ++h) {
    error += (got[h] - want[h]) * (got[h] - want[h]);
    norm += want[h] * want[h];
  }
  EXPECT_LE(std::sqrt(error), 1e-5 * std::sqrt(norm));  // of one row or column; the bar of whole tensors is lower
}

class LinearCrossEntropyLarge : public DeviceTest {};
INSTANTIATE_TEST_SUITE_P(Devices, LinearCrossEntropyLarge, ::testing::ValuesIn(device_names()), device_name);

TEST_P(LinearCrossEntropyLarge, MoreThanTwoToThe32LogitsIn64MiB) {
  Large p;
  Scalar<float> loss(NAN);
  Vector<float> dx(p.x.size(), NAN), dweight(p.weight.size(), NAN), offset(kRows, NAN), logsum(kRows, NAN);
  Vector<char> scratch(size_t{64} << 20);
  LinearCrossEntropyForwardBackward call{
      .in = {.x = p.x.data(),
             .weight = p.weight.data(),
             .bias = nullptr,
             .targets = {.index = p.labels.data()},
             .rows = kRows,
             .hidden = kHidden,
             .vocab = kVocab,
             .dtype = DType::kF32},
      .options = {},
      .out = {.loss = loss.data(), .offset = offset.data(), .logsum = logsum.data()},
      .upstream = {},
      .grad = {.dx = dx.data(), .dweight = dweight.data()},
      .workspace = {.budget_bytes = scratch.size(), .data = scratch.data(), .size_bytes = scratch.size()}};
  run(exec(), call);

  std::vector<double> lse(kRows);
  double total = 0;
  for (int64_t i = 0; i < kRows; ++i) {
    lse[i] = static_cast<double>(offset[i]) + static_cast<double>(logsum[i]);
    total += lse[i] - p.logit(i, p.labels[i]);
  }
  EXPECT_NEAR(loss, total / kRows, 1e-5 * loss);
  for (int64_t i : {int64_t{0}, int64_t{16384}, int64_t{32767}, kRows - 1}) {
    double sum = 0;
    std::vector<double> want(kHidden, 0.0);
    for (int64_t v = 0; v < kVocab; ++v) sum += std::exp(p.logit(i, v));
    EXPECT_NEAR(lse[i], std::log(sum), 1e-5);
    for (int64_t v = 0; v < kVocab; ++v) {
      double g = (std::exp(p.logit(i, v)) / sum - (v == p.labels[i])) / kRows;
      for (int64_t h = 0; h < kHidden; ++h) want[h] += g * static_cast<double>(p.weight[v * kHidden + h]);
    }
    expect_close(&dx[i * kHidden], want);
  }
  for (int64_t v : {int64_t{0}, int64_t{65535}, int64_t{65536}, kVocab - 1}) {
    std::vector<double> want(kHidden, 0.0);
    for (int64_t i = 0; i < kRows; ++i) {
      double g = (std::exp(p.logit(i, v) - lse[i]) - (v == p.labels[i])) / kRows;
      for (int64_t h = 0; h < kHidden; ++h) want[h] += g * static_cast<double>(p.x[i * kHidden + h]);
    }
    expect_close(&dweight[v * kHidden], want);
  }
}

}  // namespace
}  // namespace xce::test

// The grid of sizes: N, V and H of the public suites and more. All combinations are numbered so that every value comes
// round again and again; they are taken in that order, leaving out what is too large for the device, until its share of
// time is spent. The reference is computed of a few rows and a few columns: of rows everything in fp64; of columns dW,
// from the rows' own lse, which the rows have checked.
#include <gtest/gtest.h>

#include "tests/support/cross_entropy_harness.h"
#include "tests/support/device_test.h"
#include "tests/support/loss_harness.h"

namespace xce::test {
namespace {

constexpr int64_t kN[] = {0, 1, 7, 127, 128, 129, 1000, 4097};
constexpr int64_t kV[] = {1, 2, 7, 123, 513, 1000, 32000, 50257, 128256, 131072, 151936, 152063, 262144};
constexpr int64_t kH[] = {1, 31, 64, 127, 768, 2048, 4096};
constexpr DType kDTypes[] = {DType::kBf16, DType::kF32, DType::kF16, DType::kF64};

// Normal values of which any number is cheap.
class Pool {
 public:
  Array array(DType dtype, int64_t n, double stddev, uint64_t seed) const {
    Array rounded(dtype, kSize), a(dtype, n);
    for (int64_t i = 0; i < kSize; ++i) rounded.set(i, stddev * values_[i]);
    const size_t bytes = size_of(dtype);
    for (int64_t i = 0; i < n; ++i) {
      uint64_t mixed = (static_cast<uint64_t>(i) + seed) * 0x9E3779B97F4A7C15u;
      mixed ^= mixed >> 32;
      const uint64_t from = (mixed * 0xD6E8FEB86659FD93u) >> 48;
      std::memcpy(static_cast<char*>(a.data()) + i * bytes, static_cast<const char*>(rounded.data()) + from * bytes,
                  bytes);
    }
    return a;
  }

 private:
  static constexpr int64_t kSize = 1 << 16;
  std::vector<double> values_ = Array::normal(DType::kF64, kSize, 1).values();
};

struct Point {
  int64_t n, v, h;
  DType dtype;
  double smoothing, softcap, z_loss;
  std::string describe() const {
    return str(name_of(dtype), " N ", n, " V ", v, " H ", h, " smoothing ", smoothing, " softcap ", softcap, " z_loss ",
               z_loss);
  }
  double mass(int64_t label, int64_t v_) const {
    return (v_ == label ? 1 - smoothing : 0) + smoothing / static_cast<double>(v);
  }
};
// 8, 13 and 7 have no common divisor: k up to 728 is every combination once.
Point point(int64_t k) {
  return {kN[k % 8],
          kV[k * 5 % 13],
          kH[k * 3 % 7],
          kDTypes[k / 3 % 4],
          k % 5 == 1 ? 0.1 : 0,
          k % 3 == 1 ? 20.0 : 0,
          k % 7 == 2 ? 1e-3 : 0};
}

struct Row {
  double loss = 0, lse = 0, max = 0;
  std::vector<double> dlogits;
  double terms = 0;
};
// From y before softcap; d the denominator.
Row row_of(const Point& p, std::vector<double> z, int64_t label, double d) {
  Row row;
  for (double& value : z) value = p.softcap == 0 ? value : p.softcap * std::tanh(value / p.softcap);
  const double top = *std::max_element(z.begin(), z.end());
  long double sum = 0, ce = 0;
  for (double value : z) sum += std::exp(value - top);
  const double logsum = static_cast<double>(std::log(sum));
  row.lse = top + logsum;
  for (int64_t v = 0; v < p.v; ++v) {
    const double mass = p.mass(label, v), prob = std::exp(z[v] - row.lse);
    const double slope = p.softcap == 0 ? 1 : 1 - (z[v] / p.softcap) * (z[v] / p.softcap);
    if (mass != 0) ce += mass * ((top - z[v]) + logsum);
    row.dlogits.push_back(((1 + 2 * p.z_loss * row.lse) * prob - mass) * slope / d);
    const double terms = ((1 + 2 * p.z_loss * std::fabs(row.lse)) * prob + mass) * slope / d;
    row.terms += terms * terms;
    row.max = std::fmax(row.max, std::fabs(z[v]));
  }
  row.loss = static_cast<double>(ce) + p.z_loss * row.lse * row.lse;
  return row;
}

std::vector<int64_t> sample(int64_t n, int64_t count) {
  std::vector<int64_t> at;
  for (int64_t k = 0; k < std::min(n, count); ++k) at.push_back(k == 0 ? n - 1 : n * (k - 1) / count);
  return at;
}

class LossGrid : public DeviceTest {
 protected:
  // Of one point, and of all of them, in multiplications.
  double most() const { return on_gpu() ? 3e11 : 3e7; }
  int64_t most_weights() const { return on_gpu() ? int64_t{1} << 27 : int64_t{1} << 22; }
  const Pool pool_;
};
INSTANTIATE_TEST_SUITE_P(Devices, LossGrid, ::testing::ValuesIn(device_names()), device_name);

// One point of the fused loss.
class HeadPoint {
 public:
  HeadPoint(const Point& p, const Pool& pool, uint64_t seed)
      : p_(p),
        x_(pool.array(p.dtype, p.n * p.h, 1, seed)),
        weight_(pool.array(p.dtype, p.v * p.h, 1 / std::sqrt(static_cast<double>(p.h)), seed + 1)),
        bias_(pool.array(p.dtype, p.v, 0.5, seed + 2)),
        labels_(p.n),
        loss_(accum_dtype(p.dtype), 1),
        row_loss_(accum_dtype(p.dtype), p.n),
        offset_(accum_dtype(p.dtype), p.n),
        logsum_(accum_dtype(p.dtype), p.n),
        dx_(p.dtype, p.n * p.h),
        dweight_(accum_dtype(p.dtype), p.v * p.h),
        dbias_(accum_dtype(p.dtype), p.v) {
    for (int64_t i = 0; i < p.n; ++i) labels_[i] = i % 9 == 4 ? -100 : (i * 7919 + p.v - 1) % p.v;
    for (int64_t label : labels_) valid_ += label >= 0 ? 1 : 0;
  }

  void run_on(const Exec& exec, size_t budget_bytes) {
    LinearCrossEntropyForwardBackward args{
        .in = {.x = x_.data(),
               .weight = weight_.data(),
               .bias = bias_.data(),
               .targets = {.index = labels_.data(), .type = IndexType::kI64},
               .rows = p_.n,
               .hidden = p_.h,
               .vocab = p_.v,
               .dtype = p_.dtype},
        .options = {.z_loss = p_.z_loss, .label_smoothing = p_.smoothing, .softcap = p_.softcap},
        .out = {.loss = loss_.data(), .row_loss = row_loss_.data(), .offset = offset_.data(), .logsum = logsum_.data()},
        .upstream = {},
        .grad = {.dx = dx_.data(), .dweight = dweight_.data(), .dbias = dbias_.data()},
        .workspace = {.budget_bytes = budget_bytes}};
    Vector<char> scratch(workspace_bytes(exec, args));
    args.workspace.data = scratch.data();
    args.workspace.size_bytes = scratch.size();
    run(exec, args);
    on_gpu_ = !std::holds_alternative<CpuExec>(exec);
  }

  void expect_rows() {
    for (int64_t i : sample(p_.n, 3)) {
      std::vector<double> got(p_.h);
      for (int64_t h = 0; h < p_.h; ++h) got[h] = dx_[i * p_.h + h];
      if (labels_[i] < 0) {
        EXPECT_EQ(norm(got), 0) << i;
        EXPECT_EQ(row_loss_[i], 0) << i;
        continue;
      }
      const std::vector<double> x = elements(x_, i);
      std::vector<double> y(p_.v), want(p_.h, 0.0);
      for (int64_t v = 0; v < p_.v; ++v) y[v] = dot(x, elements(weight_, v)) + bias_[v];
      const Row row = row_of(p_, y, labels_[i], static_cast<double>(valid_));
      for (int64_t v = 0; v < p_.v; ++v) {
        const std::vector<double> w = elements(weight_, v);
        for (int64_t h = 0; h < p_.h; ++h) want[h] += row.dlogits[v] * w[h];
      }
      max_logit_ = std::fmax(max_logit_, row.max);
      EXPECT_NEAR(row_loss_[i], row.loss, loss_bar(p_.dtype, row.loss, row.max)) << i;
      EXPECT_NEAR(offset_[i] + logsum_[i], row.lse, loss_bar(p_.dtype, row.lse, row.max)) << i;
      EXPECT_TRUE(close_values(got, want, p_.dtype, 2 * gradient_bar(p_.dtype, row.max), {std::sqrt(row.terms), true}))
          << "dx of row " << i;
    }
  }
  void expect_columns() {
    std::vector<double> rows(p_.n, 0.0);
    double total = 0;
    for (int64_t i = 0; i < p_.n; ++i) total += row_loss_[i];
    const double mean = valid_ == 0 ? 0 : total / static_cast<double>(valid_);
    EXPECT_NEAR(loss_[0], mean, loss_bar(p_.dtype, mean, 0));
    for (int64_t v : sample(p_.v, 4)) {
      const std::vector<double> w = elements(weight_, v);
      std::vector<double> got(p_.h), want(p_.h, 0.0);
      // Beside the label's element, fp16 on a GPU keeps the others in steps of its smallest.
      const double bar = 3 * weight_gradient_bar(p_.dtype, on_gpu_, max_logit_);
      const double step = on_gpu_ && p_.dtype == DType::kF16 ? 0x1p-30 / bar : 0;
      double want_bias = 0, terms = 0, bias_terms = 0;
      for (int64_t h = 0; h < p_.h; ++h) got[h] = dweight_[v * p_.h + h];
      for (int64_t i = 0; i < p_.n; ++i) {
        if (labels_[i] < 0) continue;
        const std::vector<double> x = elements(x_, i);
        double z = dot(x, w) + bias_[v];
        z = p_.softcap == 0 ? z : p_.softcap * std::tanh(z / p_.softcap);
        const double lse = offset_[i] + logsum_[i], mass = p_.mass(labels_[i], v), prob = std::exp(z - lse);
        const double slope = p_.softcap == 0 ? 1 : 1 - (z / p_.softcap) * (z / p_.softcap);
        const double g = ((1 + 2 * p_.z_loss * lse) * prob - mass) * slope / static_cast<double>(valid_);
        const double size =
            (((1 + 2 * p_.z_loss * std::fabs(lse)) * prob + mass) * slope + step) / static_cast<double>(valid_);
        for (int64_t h = 0; h < p_.h; ++h) want[h] += g * x[h];
        want_bias += g;
        terms += size * size * dot(x, x), bias_terms += size * size;
      }
      const DType kept = dweight_.dtype();
      EXPECT_TRUE(close_values(got, want, kept, bar, {std::sqrt(terms), true})) << "dweight of column " << v;
      EXPECT_TRUE(close_values({dbias_[v]}, {want_bias}, kept, bar, {std::sqrt(bias_terms), true})) << v;
    }
    for (const Array* a : {&x_, &weight_, &bias_, &dx_, &dweight_, &dbias_, &row_loss_, &offset_, &logsum_})
      EXPECT_TRUE(a->guards_intact());
  }

 private:
  std::vector<double> elements(const Array& a, int64_t row) const {
    std::vector<double> values(p_.h);
    for (int64_t h = 0; h < p_.h; ++h) values[h] = a[row * p_.h + h];
    return values;
  }
  static double dot(const std::vector<double>& a, const std::vector<double>& b) {
    double sum = 0;
    for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
    return sum;
  }

  Point p_;
  Array x_, weight_, bias_;
  Vector<int64_t> labels_;
  Array loss_, row_loss_, offset_, logsum_, dx_, dweight_, dbias_;
  int64_t valid_ = 0;
  double max_logit_ = 0;
  bool on_gpu_ = false;
};

TEST_P(LossGrid, LinearCrossEntropy) {
  double spent = 0;
  // Of weights that the reference reads, which takes longest.
#ifdef __SANITIZE_ADDRESS__
  const double share = 2e7;
#else
  const double share = on_gpu() ? 4e9 : 2.5e8;
#endif
  int64_t points = 0;
  for (int64_t k = 0; k < 8 * 13 * 7; ++k) {
    const Point p = point(k);
    const double products = static_cast<double>(p.n) * static_cast<double>(p.v * p.h);
    if (products > most() || p.v * p.h > most_weights() || spent > share) continue;
    spent += static_cast<double>(p.v * p.h) * 3 + static_cast<double>(p.n * p.h) * 4 + products * (on_gpu() ? 0 : 0.03);
    ++points;
    SCOPED_TRACE(p.describe());
    HeadPoint head(p, pool_, static_cast<uint64_t>(k) * 1000003);
    head.run_on(exec(), size_t{k % 2 == 0 ? 256u : 24u} << 20);
    head.expect_rows();
    head.expect_columns();
    if (HasFailure()) return;
  }
  EXPECT_GE(points, share > 1e8 ? 60 : 10);
}

TEST_P(LossGrid, CrossEntropy) {
  const int64_t most_logits = on_gpu() ? int64_t{1} << 28 : int64_t{1} << 22;
  for (int64_t k = 0; k < 8 * 13; ++k) {
    Point p = point(k * 7);
    p.n = kN[k % 8], p.v = kV[k % 13];
    if (p.n * p.v > most_logits) continue;
    SCOPED_TRACE(p.describe());
    LossCase c;
    c.rows = p.n, c.vocab = p.v, c.hidden = 1;
    for (int64_t i = 0; i < p.n; ++i) c.labels.push_back(i % 9 == 4 ? -100 : (i * 7919 + p.v - 1) % p.v);
    const int64_t valid = p.n - std::count(c.labels.begin(), c.labels.end(), -100);
    const Array y = pool_.array(p.dtype, p.n * p.v, 2, static_cast<uint64_t>(k) * 1000003);
    const LogitsCase empty{c, {}};
    CrossEntropyRun got(empty, {.dtype = p.dtype, .in_place = true});
    got.logits = y;
    CrossEntropyForwardBackward args = got.both_call();
    args.options.z_loss = p.z_loss, args.options.label_smoothing = p.smoothing, args.options.softcap = p.softcap;
    got.launch_with_workspace(exec(), args);
    EXPECT_EQ(got.n_valid, valid);
    double total = 0;
    for (int64_t i = 0; i < p.n; ++i) total += got.row_loss[i];
    const double mean = valid == 0 ? 0 : total / static_cast<double>(valid);
    EXPECT_NEAR(got.loss[0], mean, loss_bar(p.dtype, mean, 0));
    for (int64_t i : sample(p.n, 5)) {
      std::vector<double> logits(p.v), dlogits(p.v);
      for (int64_t v = 0; v < p.v; ++v) logits[v] = y[i * p.v + v], dlogits[v] = got.logits[i * p.v + v];
      Row row = row_of(p, logits, std::max<int64_t>(0, c.labels[i]), static_cast<double>(valid));
      if (c.labels[i] < 0) {
        EXPECT_EQ(norm(dlogits), 0) << i;
        continue;
      }
      EXPECT_NEAR(got.row_loss[i], row.loss, loss_bar(p.dtype, row.loss, row.max)) << i;
      EXPECT_TRUE(
          close_values(dlogits, row.dlogits, p.dtype, gradient_bar(p.dtype, row.max), {std::sqrt(row.terms), true}))
          << i;
    }
    EXPECT_TRUE(got.outputs_guarded());
    EXPECT_TRUE(got.logits.guards_intact());
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace xce::test

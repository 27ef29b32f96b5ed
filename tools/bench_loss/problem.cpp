#include "tools/bench_loss/problem.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace xce::bench {
namespace {

constexpr double kSmoothing = 0.1, kZLoss = 1e-4, kSoftcap = 30, kScale = 0.75;
constexpr int64_t kRowsLookedAt = 3, kLabelsLookedAt = 16;

template <class T>
void* upload(Device& device, const std::vector<T>& values) {
  void* to = device.allocate(values.size() * sizeof(T));
  device.write(to, values.data(), values.size() * sizeof(T));
  return to;
}

class Relative {
 public:
  void add(double got, double want) {
    error_ += (got - want) * (got - want);
    norm_ += want * want;
  }
  double value() const { return norm_ > 0 ? std::sqrt(error_ / norm_) : std::sqrt(error_); }

 private:
  double error_ = 0, norm_ = 0;
};

}  // namespace

LossProblem::LossProblem(LossDevice& device, const LossShape& s, const LossBenchOptions& o)
    : device_(device), s_(s), dtype_(o.dtype), is_plain_(o.plain), tf32_(o.tf32), narrow_(o.narrow) {
  Device& memory = device.memory();
  uint64_t state = 1;
  auto draw = [&] { return (state = state * 6364136223846793005u + 1442695040888963407u) >> 33; };
  for (int64_t i = 0; i < s.rows; ++i) {
    host_labels_.push_back(static_cast<int32_t>(draw() % static_cast<uint64_t>(s.vocab)));
    host_tokens_.push_back(0.5f + static_cast<float>(draw() % 4) / 4);
  }
  double sum = 0;
  for (int64_t v = 0; v < s.vocab; ++v) {
    host_classes_.push_back(0.5f + static_cast<float>(draw() % 8) / 8);
    host_probabilities_.push_back(static_cast<float>(draw() % 16));
    sum += host_probabilities_.back();
  }
  for (float& p : host_probabilities_) p /= static_cast<float>(std::max(sum, 1.0));
  labels_ = upload(memory, host_labels_), classes_ = upload(memory, host_classes_);
  tokens_ = upload(memory, host_tokens_);
  if (std::any_of(o.features.begin(), o.features.end(), [](const Features& f) { return f.probabilities; })) {
    probabilities_ = memory.allocate(static_cast<size_t>(s.rows * s.vocab) * sizeof(float));
    for (int64_t i = 0; i < s.rows; ++i)
      memory.write(static_cast<float*>(probabilities_) + i * s.vocab, host_probabilities_.data(),
                   host_probabilities_.size() * sizeof(float));
  }
  argmax_ = memory.allocate(static_cast<size_t>(s.rows) * sizeof(int64_t));
  n_correct_ = memory.allocate(sizeof(int64_t));
  loss_ = Array::output(memory, DType::kF32, 1), row_loss_ = Array::output(memory, DType::kF32, s.rows);
  offset_ = Array::output(memory, DType::kF32, s.rows), logsum_ = Array::output(memory, DType::kF32, s.rows);
  entropy_ = Array::output(memory, DType::kF32, s.rows);
  if (o.plain) {
    logits_ = Array::source(memory, dtype_, s.rows * s.vocab, 5, 2);
    dlogits_ = Array::output(memory, dtype_, s.rows * s.vocab);
    return;
  }
  x_ = Array::source(memory, dtype_, s.rows * s.hidden, 1);
  weight_ = Array::source(memory, dtype_, s.vocab * s.hidden, 2, 1 / std::sqrt(static_cast<double>(s.hidden)));
  bias_ = Array::source(memory, dtype_, s.vocab, 3, 0.5);
  dx_ = Array::output(memory, dtype_, s.rows * s.hidden);
  dweight_ = Array::zeros(memory, narrow_ ? dtype_ : DType::kF32, s.vocab * s.hidden);
  dbias_ = Array::zeros(memory, narrow_ ? dtype_ : DType::kF32, s.vocab);
}

LossTargets LossProblem::targets(const Features& f) const {
  if (f.probabilities) return {.probabilities = probabilities_, .probability_type = DType::kF32};
  return {.index = labels_, .type = IndexType::kI32};
}
LossOptions LossProblem::options(const Features& f) const {
  return {.z_loss = f.z_loss ? kZLoss : 0,
          .label_smoothing = f.smoothing ? kSmoothing : 0,
          .softcap = f.softcap ? kSoftcap : 0,
          .logit_scale = f.scale ? kScale : 1,
          .class_weights = f.class_weights ? classes_ : nullptr,
          .token_weights = f.token_weights ? tokens_ : nullptr};
}
LossOutputs LossProblem::outputs(const Features& f) const {
  const bool labels = !f.probabilities;
  return {.loss = loss_.data(),
          .row_loss = row_loss_.data(),
          .offset = offset_.data(),
          .logsum = logsum_.data(),
          .row_entropy = f.entropy ? entropy_.data() : nullptr,
          .argmax = f.accuracy && !labels ? static_cast<int64_t*>(argmax_) : nullptr,
          .n_correct = f.accuracy && labels ? static_cast<int64_t*>(n_correct_) : nullptr};
}

LinearCrossEntropyForwardBackward LossProblem::linear(const Features& f, size_t budget_bytes) {
  return {.in = {.x = x_.data(),
                 .weight = weight_.data(),
                 .bias = f.bias ? bias_.data() : nullptr,
                 .targets = targets(f),
                 .rows = s_.rows,
                 .hidden = s_.hidden,
                 .vocab = s_.vocab,
                 .dtype = dtype_,
                 .allow_tf32 = tf32_},
          .options = options(f),
          .out = outputs(f),
          .upstream = {},
          .grad = {.dx = dx_.data(),
                   .dweight = dweight_.data(),
                   .dbias = f.bias ? dbias_.data() : nullptr,
                   .dweight_in_dtype = narrow_ && dtype_ != DType::kF32},
          .workspace = {.budget_bytes = budget_bytes}};
}
CrossEntropyForwardBackward LossProblem::plain(const Features& f) {
  return {.in = {.logits = logits_.data(), .targets = targets(f), .rows = s_.rows, .vocab = s_.vocab, .dtype = dtype_},
          .options = options(f),
          .out = outputs(f),
          .upstream = {},
          .dlogits = dlogits_.data()};
}
size_t LossProblem::budget_of_rows(int64_t rows) const {
  return static_cast<size_t>(rows * (4 * (s_.vocab + 8) + 2 * s_.hidden + 256)) + (size_t{1} << 20);
}

double LossProblem::mass(const Features& f, int64_t i, int64_t v) const {
  const double e = f.smoothing ? kSmoothing : 0, t = f.probabilities ? host_probabilities_[v] : v == host_labels_[i];
  return weight_of(f, v) * ((1 - e) * t + e / static_cast<double>(s_.vocab));
}
double LossProblem::factor(const Features& f, int64_t i) const {
  double d = 0;
  for (int64_t k = 0; k < s_.rows; ++k) d += token(f, k) * (f.probabilities ? 1 : weight_of(f, host_labels_[k]));
  return token(f, i) / d;
}
double LossProblem::capped(const Features& f, double y) const {
  const double z = f.scale ? kScale * y : y;
  return f.softcap ? kSoftcap * std::tanh(z / kSoftcap) : z;
}
// Calls f(first label, labels, their weights) for all labels, a block at a time: whole weights may be gigabytes.
template <class F>
void LossProblem::each_block(F&& f) const {
  constexpr int64_t kBlock = 1024;
  for (int64_t first = 0; first < s_.vocab; first += kBlock) {
    const int64_t n = std::min(kBlock, s_.vocab - first);
    f(first, n, weight_.read(first * s_.hidden, n * s_.hidden));
  }
}
std::vector<std::vector<double>> LossProblem::logits_of(const Features& f, const std::vector<int64_t>& rows) const {
  std::vector<std::vector<double>> all, x;
  const std::vector<double> bias = f.bias ? bias_.read(0, s_.vocab) : std::vector<double>(s_.vocab);
  for (int64_t i : rows) {
    if (!is_plain_) x.push_back(x_.read(i * s_.hidden, s_.hidden));
    all.push_back(is_plain_ ? logits_.read(i * s_.vocab, s_.vocab) : bias);
  }
  if (!is_plain_)
    each_block([&](int64_t first, int64_t n, const std::vector<double>& w) {
      for (size_t k = 0; k < rows.size(); ++k)
        for (int64_t v = 0; v < n; ++v)
          for (int64_t h = 0; h < s_.hidden; ++h) all[k][first + v] += x[k][h] * w[v * s_.hidden + h];
    });
  for (std::vector<double>& z : all)
    for (double& value : z) value = capped(f, value);
  return all;
}

LossProblem::Row LossProblem::reference(const Features& f, int64_t i, const std::vector<double>& z) const {
  const double top = *std::max_element(z.begin(), z.end()), g = factor(f, i);
  double sum = 0, total = 0;
  for (double value : z) sum += std::exp(value - top);
  Row row{0, 0, top + std::log(sum), {}};
  const double c = f.z_loss ? kZLoss : 0;
  for (int64_t v = 0; v < s_.vocab; ++v) total += mass(f, i, v);
  for (int64_t v = 0; v < s_.vocab; ++v) {
    const double p = std::exp(z[v] - row.lse), slope = f.softcap ? 1 - z[v] * z[v] / (kSoftcap * kSoftcap) : 1;
    row.loss += mass(f, i, v) * (row.lse - z[v]);
    row.entropy += p * (row.lse - z[v]);
    row.dlogits.push_back(g * (f.scale ? kScale : 1) * slope * ((total + 2 * c * row.lse) * p - mass(f, i, v)));
  }
  row.loss = token(f, i) * (row.loss + c * row.lse * row.lse);
  return row;
}

// dx of the rows; dW of some labels from all rows, whose lse is what the call gave (of the rows looked at it is right).
void LossProblem::check_linear(const Features& f, const std::vector<int64_t>& rows, const std::vector<Row>& want,
                               LossErrors& errors) {
  Relative dx, dweight;
  std::vector<std::vector<double>> sums(rows.size(), std::vector<double>(s_.hidden));
  each_block([&](int64_t first, int64_t n, const std::vector<double>& w) {
    for (size_t k = 0; k < rows.size(); ++k)
      for (int64_t v = 0; v < n; ++v)
        for (int64_t h = 0; h < s_.hidden; ++h) sums[k][h] += want[k].dlogits[first + v] * w[v * s_.hidden + h];
  });
  for (size_t k = 0; k < rows.size(); ++k) {
    const std::vector<double> got = dx_.read(rows[k] * s_.hidden, s_.hidden);
    for (int64_t h = 0; h < s_.hidden; ++h) dx.add(got[h], sums[k][h]);
  }
  const std::vector<double> offset = offset_.read(0, s_.rows), logsum = logsum_.read(0, s_.rows);
  const std::vector<double> bias = bias_.read(0, s_.vocab), x = x_.read(0, s_.rows * s_.hidden);
  double smooth = 0;
  for (int64_t v = 0; v < s_.vocab; ++v) smooth += weight_of(f, v) / static_cast<double>(s_.vocab);
  const double e = f.smoothing ? kSmoothing : 0, c = f.z_loss ? kZLoss : 0, d = token(f, 0) / factor(f, 0);
  double of_probabilities = 0;
  if (f.probabilities)
    for (int64_t v = 0; v < s_.vocab; ++v) of_probabilities += mass(f, 0, v);
  for (int64_t k = 0; k < std::min(kLabelsLookedAt, s_.rows); ++k) {
    const int64_t v = k % 2 ? host_labels_[k] : k * (s_.vocab - 1) / kLabelsLookedAt;
    const std::vector<double> w = weight_.read(v * s_.hidden, s_.hidden), got = dweight_.read(v * s_.hidden, s_.hidden);
    std::vector<double> sum(s_.hidden);
    for (int64_t i = 0; i < s_.rows; ++i) {
      double y = f.bias ? bias[v] : 0;
      for (int64_t h = 0; h < s_.hidden; ++h) y += x[i * s_.hidden + h] * w[h];
      const double z = capped(f, y), lse = offset[i] + logsum[i], p = std::exp(z - lse);
      const double total = f.probabilities ? of_probabilities : weight_of(f, host_labels_[i]) * (1 - e) + e * smooth;
      const double slope = f.softcap ? 1 - z * z / (kSoftcap * kSoftcap) : 1;
      const double g = token(f, i) / d * (f.scale ? kScale : 1) * slope * ((total + 2 * c * lse) * p - mass(f, i, v));
      for (int64_t h = 0; h < s_.hidden; ++h) sum[h] += g * x[i * s_.hidden + h];
    }
    for (int64_t h = 0; h < s_.hidden; ++h) dweight.add(got[h], sum[h]);
  }
  errors.dx = dx.value(), errors.dweight = dweight.value();
}

LossErrors LossProblem::verify(const Features& f) {
  const std::vector<double> row_loss = row_loss_.read(0, s_.rows), entropy = entropy_.read(0, s_.rows);
  std::vector<int64_t> rows;
  std::vector<Row> want;
  for (int64_t k = 0; k < std::min(kRowsLookedAt, s_.rows); ++k)
    rows.push_back(k * (s_.rows - 1) / std::max<int64_t>(1, kRowsLookedAt - 1));
  const std::vector<std::vector<double>> z = logits_of(f, rows);
  for (size_t k = 0; k < rows.size(); ++k) want.push_back(reference(f, rows[k], z[k]));
  LossErrors errors;
  Relative loss, of_entropy, dlogits;
  for (size_t k = 0; k < rows.size(); ++k) {
    loss.add(row_loss[rows[k]], want[k].loss);
    if (f.entropy) of_entropy.add(entropy[rows[k]], want[k].entropy);
    if (!is_plain_) continue;
    const std::vector<double> got = dlogits_.read(rows[k] * s_.vocab, s_.vocab);
    for (int64_t v = 0; v < s_.vocab; ++v) dlogits.add(got[v], want[k].dlogits[v]);
  }
  errors.row_loss = loss.value(), errors.entropy = of_entropy.value(), errors.dlogits = dlogits.value();
  if (!is_plain_) check_linear(f, rows, want, errors);
  double mean = 0;
  for (double loss_of_row : row_loss) mean += loss_of_row;
  mean *= factor(f, 0) / token(f, 0);
  const double bar = tf32_ ? 2e-3 : dtype_ == DType::kF32 ? 1e-5 : dtype_ == DType::kF16 ? 1e-3 : 4e-3;
  const double loss_bar = tf32_ ? 1e-4 : 1e-5;
  auto expect = [&](double error, double most, const char* what) {
    XCE_CHECK(error <= most, str("a right result before it is timed: error of ", what, " at most ", most),
              str(error, " with ", f.name));
  };
  expect(errors.row_loss, loss_bar, "the row losses"), expect(errors.entropy, loss_bar, "the entropies");
  expect(std::fabs(loss_.read(0, 1)[0] / mean - 1), 1e-5, "the loss");
  expect(errors.dx, bar, "dx"), expect(errors.dweight, 2 * bar, "dW"), expect(errors.dlogits, bar, "dlogits");
  return errors;
}

}  // namespace xce::bench

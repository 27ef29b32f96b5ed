// Random cases of both losses: options, sizes, strides, leading dimensions, budgets and what is asked for, all from one
// seed. XCE_RANDOM_CASES (how many) and XCE_RANDOM_SEED (of the first, the next have the following ones) choose.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <initializer_list>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "tests/support/cross_entropy_harness.h"
#include "tests/support/loss_harness.h"
#include "tests/support/loss_shards.h"

namespace xce::test {

// An environment variable's number, or else `standard`.
inline uint64_t number_from_environment(const char* name, uint64_t standard) {
  const char* text = std::getenv(name);
  return text && *text ? std::stoull(text) : standard;
}
// A fifteenth of the cases where every access is checked.
inline uint64_t random_cases(uint64_t standard) {
#ifdef __SANITIZE_ADDRESS__
  standard = standard / 15 + 1;
#endif
  return number_from_environment("XCE_RANDOM_CASES", standard);
}
inline uint64_t random_seed() {
  return number_from_environment("XCE_RANDOM_SEED", 1);
}

class LossDraw {
 public:
  LossCase c;
  LossSetup s;
  std::vector<double> y;  // logits of plain cross-entropy
  int threads = 1;

  // `few_sizes` for a GPU, whose matrix products cost a search for each new size and a launch for each chunk.
  explicit LossDraw(uint64_t seed, bool few_sizes = false)
      : seed_(seed), few_sizes_(few_sizes), gen_(seed * 0x9E3779B97F4A7C15u + 1) {
    s.dtype = pick({DType::kF32, DType::kBf16, DType::kF16, DType::kF64});
    s.by_terms = true;
    threads = pick({1, 1, 1, 1, 1, 1, 1, 1, 2, 3});
    draw_sizes();
    draw_targets();
    draw_options();
    draw_reduction();
    draw_layout();
    draw_outputs();
  }

  std::string describe() const {
    std::string text =
        str("XCE_RANDOM_SEED=", seed_, " XCE_RANDOM_CASES=1: ", name_of(s.dtype), " N ", c.rows, " H ", c.hidden, " V ",
            c.vocab, " threads ", threads, " reduction ", static_cast<int>(s.reduction));
    auto add = [&text](const char* name, double value, double standard) {
      if (value != standard) text += str(", ", name, " ", value);
    };
    add("bias", std::ssize(c.bias), 0), add("upstream values", std::ssize(c.upstream), 0);
    add("upstream", c.upstream.empty() ? 1 : c.upstream[0], 1), add("class weights", std::ssize(c.class_weights), 0);
    add("token weights", std::ssize(c.token_weights), 0), add("smoothing", c.label_smoothing, 0);
    add("softcap", c.softcap, 0), add("logit scale", c.logit_scale, 1), add("z_loss", c.z_loss, 0);
    add("int32 labels", s.index == IndexType::kI32, 0), add("label stride", s.index_stride, 1);
    add("upstream stride", s.upstream_stride, 1), add("denominator", s.by_pointer ? c.divisor : -1, -1);
    add("ignore_index", static_cast<double>(c.ignore_index), -100);
    if (!c.probabilities.empty()) text += str(", probabilities ", name_of(s.probability_type));
    add("budget", s.budget_factor, 0), add("skip", s.skip, 0), add("omit", s.omit, 0), add("in place", s.in_place, 0);
    add("pads", s.pad_x + 10 * s.pad_weight + 100 * s.pad_dx + 1000 * s.pad_dweight + 1e4 * s.pad_probabilities, 0);
    add("accumulate", s.accumulate, 0), add("dx in accum dtype", s.dx_in_accum_dtype, 0);
    add("dweight in dtype", s.dweight_in_dtype, 0), add("without dx", !s.with_dx, 0);
    add("without dweight", !s.with_dweight, 0), add("without dbias", !s.with_dbias, 0);
    add("empty is nan", s.empty_is_nan, 0), add("out of range is nan", s.out_of_range_is_nan, 0);
    return text;
  }

  LossAnswer answer_of_logits() const { return reference_cross_entropy(c, y); }
  // The vocabulary in one to four parts, the last ones perhaps padded, perhaps of padding alone.
  std::vector<Part> cut() {
    std::vector<Part> parts;
    const int64_t count = pick<int64_t>({1, 2, 3, 4});
    int64_t at = 0;
    for (int64_t k = 0; k < count; ++k) {
      const int64_t left = c.vocab - at;
      int64_t cols = left <= 1 || one_in(5) ? 1 : 1 + static_cast<int64_t>(gen_() % static_cast<uint64_t>(left));
      if (k + 1 == count) cols = std::max<int64_t>(1, left) + pick<int64_t>({0, 0, 1, 60});
      parts.push_back({at, cols});
      at += cols;
    }
    return parts;
  }

  bool one_in(uint64_t n) { return gen_() % n == 0; }
  template <class T>
  T pick(std::initializer_list<T> values) {
    return *(values.begin() + gen_() % values.size());
  }
  uint64_t next() { return gen_(); }

 private:
  static constexpr int64_t kMostProducts = 200000;

  void draw_sizes() {
    do {
      c.rows = pick<int64_t>({0, 1, 2, 3, 7, 7, 16, 33, 33, 65, 130, 300});
      c.hidden = pick<int64_t>({1, 2, 5, 8, 16, 17, 31, 64});
      c.vocab = pick<int64_t>({1, 2, 3, 7, 64, 65, 100, 123, 256, 513, 1000, 2050});
      if (few_sizes_) {
        c.rows = pick<int64_t>({0, 1, 7, 33, 130});
        c.hidden = pick<int64_t>({1, 8, 17, 64});
        c.vocab = pick<int64_t>({1, 2, 7, 65, 256, 1000, 2050});
      }
    } while (c.rows * c.hidden * c.vocab > kMostProducts);
    const double spread = pick({0.3, 1.0, 1.0, 4.0});
    LossCase drawn = random_case(s.dtype, c.rows, c.hidden, c.vocab, gen_(), spread, !one_in(3));
    c.x = drawn.x, c.weight = drawn.weight, c.bias = drawn.bias, c.labels = drawn.labels;
    y = Array::normal(s.dtype, c.rows * c.vocab, gen_(), 2 * spread).values();
    if (one_in(6)) copy_columns();
  }
  // Ties: every other column is its neighbour's copy.
  void copy_columns() {
    for (int64_t v = 1; v < c.vocab; v += 2) {
      for (int64_t h = 0; h < c.hidden; ++h) c.weight[v * c.hidden + h] = c.weight[(v - 1) * c.hidden + h];
      for (int64_t i = 0; i < c.rows; ++i) y[i * c.vocab + v] = y[i * c.vocab + v - 1];
      if (!c.bias.empty()) c.bias[v] = c.bias[v - 1];
    }
  }

  void draw_targets() {
    if (c.rows > 0 && one_in(4)) return draw_probabilities();
    s.index = pick({IndexType::kI32, IndexType::kI64});
    s.index_stride = pick<int64_t>({1, 1, 2, 5, -1});
    const bool wide = s.index == IndexType::kI64;
    constexpr int64_t kMost = std::numeric_limits<int64_t>::max(), kMost32 = std::numeric_limits<int32_t>::max();
    if (one_in(3)) {
      const int64_t ignore = wide ? pick<int64_t>({0, c.vocab - 1, -1, int64_t{1} << 40, -kMost - 1, kMost})
                                  : pick<int64_t>({0, c.vocab - 1, -1, -kMost32 - 1, kMost32});
      for (int64_t& label : c.labels) label = label == c.ignore_index ? ignore : label;
      c.ignore_index = ignore;
    }
    if (one_in(3)) {
      for (int64_t& label : c.labels) {
        if (!one_in(8)) continue;
        label = pick<int64_t>({c.vocab, c.vocab + 1, -1, -2, 65536 + c.vocab / 2, kMost32, -kMost32 - 1});
        if (wide && one_in(2)) label = pick<int64_t>({kMost, -kMost - 1, (int64_t{1} << 32) + c.vocab / 2});
      }
    }
    if (one_in(20)) std::fill(c.labels.begin(), c.labels.end(), c.ignore_index);
  }
  void draw_probabilities() {
    c.labels.clear();
    s.probability_type = pick({DType::kF32, DType::kBf16, DType::kF16, DType::kF64});
    Array rounded(s.probability_type, c.rows * c.vocab);
    std::uniform_real_distribution<double> uniform(0, 1);
    const bool sparse = one_in(2), normalised = !one_in(4);
    for (int64_t i = 0; i < c.rows; ++i) {
      std::vector<double> row(c.vocab);
      double sum = 0;
      for (double& t : row) sum += t = sparse && one_in(2) ? 0 : uniform(gen_);
      for (int64_t v = 0; v < c.vocab; ++v) rounded.set(i * c.vocab + v, normalised && sum > 0 ? row[v] / sum : row[v]);
    }
    c.probabilities = rounded.values();
  }

  std::vector<double> accumulated(const std::vector<double>& values) const {
    Array a(accum_dtype(s.dtype), std::ssize(values));
    for (int64_t i = 0; i < a.size(); ++i) a.set(i, values[i]);
    return a.values();
  }
  void draw_options() {
    std::uniform_real_distribution<double> uniform(0, 2);
    if (one_in(2)) {
      c.class_weights.resize(c.vocab);
      for (double& w : c.class_weights) w = one_in(8) ? 0 : uniform(gen_);
      c.class_weights = accumulated(c.class_weights);
    }
    if (one_in(2)) {
      c.token_weights.resize(c.rows);
      for (double& u : c.token_weights) u = one_in(6) ? 0 : one_in(3) ? 1 : uniform(gen_);
      c.token_weights = accumulated(c.token_weights);
    }
    if (one_in(2)) c.label_smoothing = pick({0.1, 0.37, 1.0});
    if (one_in(2)) c.softcap = pick({2.0, 5.0, 30.0});
    if (one_in(2)) c.logit_scale = pick({0.5, -1.5, 3.0, 0.0});
    if (one_in(2)) c.z_loss = pick({1e-3, 0.05});
    s.empty_is_nan = one_in(2);
    s.out_of_range_is_nan = one_in(3);
  }

  void draw_reduction() {
    s.reduction = pick({Reduction::kNone, Reduction::kMean, Reduction::kMean, Reduction::kSum});
    s.by_pointer = s.reduction == Reduction::kMean && one_in(2);
    c.own_mean = s.reduction == Reduction::kMean && !s.by_pointer;
    c.divisor = s.by_pointer ? pick({17.0, 1234.5, 1.0, 0.0}) : 1;
    if (!c.own_mean && one_in(2))  // a weight sum of terms of both signs may be anything
      for (double& u : c.token_weights) u = one_in(3) ? -u : u;
    s.dx_in_accum_dtype = one_in(4);
    if (s.reduction == Reduction::kNone && one_in(2)) {
      c.upstream = Array::normal(accum_dtype(s.dtype), c.rows, gen_()).values();
      s.upstream_stride = pick<int64_t>({1, 2, 7, -1});
      if (c.rows == 0) c.upstream = {1};
    } else if (one_in(2)) {
      c.upstream = accumulated({pick({0.0, 1.0, -2.0, 1e-3, s.dtype == DType::kF16 ? 3.0 : 65536.0})});
    }
  }

  void draw_layout() {
    for (int64_t* pad : {&s.pad_x, &s.pad_weight, &s.pad_dx, &s.pad_dweight, &s.pad_probabilities})
      if (one_in(2)) *pad = few_sizes_ ? pick<int64_t>({1, 8}) : pick<int64_t>({1, 3, 8});
    s.skip = one_in(2) ? 0 : pick<int64_t>({1, 3});
    s.in_place = one_in(2);
    s.budget_factor = few_sizes_ ? pick({4.0, 30.0, 1000.0}) : pick({1.0, 1.0, 1.3, 3.0, 20.0, 1000.0});
    if (few_sizes_ && c.rows < 10 && one_in(2)) s.budget_factor = 1;
    if (one_in(4)) s.with_dx = !one_in(3), s.with_dweight = !one_in(3), s.with_dbias = !one_in(3);
    s.accumulate = one_in(3);
    s.dweight_in_dtype = !s.accumulate && one_in(4);
  }
  void draw_outputs() {
    if (one_in(2)) return;
    if (one_in(3))
      s.omit = ~uint32_t{LossCall::kResidual};
    else
      s.omit = static_cast<uint32_t>(gen_()) & ~uint32_t{LossCall::kResidual};
  }

  uint64_t seed_;
  bool few_sizes_;
  std::mt19937_64 gen_;
};

}  // namespace xce::test

// One case for each option of the losses, and for the combinations that meet in one place of the kernels: what must
// hold for every option is tested over this list.
#pragma once

#include <cmath>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/loss_call.h"

namespace xce::test {

struct OptionCase {
  std::string name;
  LossCase c;
  LossSetup s;
};

// Values rounded to dtype.
inline std::vector<double> rounded(DType dtype, const std::vector<double>& values) {
  Array a(dtype, std::ssize(values));
  for (int64_t i = 0; i < a.size(); ++i) a.set(i, values[i]);
  return a.values();
}

// Each an in-place change of a case.
namespace options {

inline void class_weights(LossCase& c, const LossSetup& s) {
  std::mt19937_64 gen(5);
  std::uniform_real_distribution<double> uniform(0.1, 2);
  std::vector<double> w(c.vocab);
  for (double& value : w) value = gen() % 5 == 0 ? 0 : uniform(gen);
  for (size_t i = 0; i < std::min<size_t>(2, c.labels.size()); ++i)  // a weight of zero at a label
    if (c.labels[i] >= 0 && c.labels[i] < c.vocab) w[c.labels[i]] = 0;
  c.class_weights = rounded(accum_dtype(s.dtype), w);
}
// Zero, and fractions; `negative` too.
inline void token_weights(LossCase& c, const LossSetup& s, bool negative = false) {
  c.token_weights.clear();
  for (int64_t i = 0; i < c.rows; ++i)
    c.token_weights.push_back(i % 6 == 1 ? 0 : i % 6 == 3 && negative ? -0.75 : 0.3 + 0.2 * static_cast<double>(i % 5));
  c.token_weights = rounded(accum_dtype(s.dtype), c.token_weights);
}
// Softmax-like rows, a third of them with exact zeros, one row one-hot, one row not normalised.
inline void probabilities(LossCase& c, LossSetup& s, DType type) {
  s.probability_type = type;
  c.labels.clear();
  std::vector<double> t = Array::normal(DType::kF64, c.rows * c.vocab, 31, 1.5).values();
  for (int64_t i = 0; i < c.rows; ++i) {
    double sum = 0;
    for (int64_t v = 0; v < c.vocab; ++v) {
      double& value = t[i * c.vocab + v];
      value = i % 3 == 0 && v % 2 == 0 && c.vocab > 1 ? 0 : std::exp(value);
      if (i == 1) value = v == c.vocab / 2 ? 1 : 0;
      sum += value;
    }
    for (int64_t v = 0; v < c.vocab; ++v) t[i * c.vocab + v] /= i == 2 ? sum / 2.5 : sum;
  }
  c.probabilities = rounded(type, t);
}
inline void reduction(LossCase& c, LossSetup& s, Reduction reduction) {
  s.reduction = reduction;
  c.own_mean = reduction == Reduction::kMean;
  c.divisor = 1;
}
inline void denominator(LossCase& c, LossSetup& s, double value) {
  s.by_pointer = true, c.own_mean = false, c.divisor = value;
}
inline void row_upstream(LossCase& c, LossSetup& s, int64_t stride) {
  reduction(c, s, Reduction::kNone);
  c.upstream = Array::normal(accum_dtype(s.dtype), c.rows, 33).values();
  s.upstream_stride = stride;
}

}  // namespace options

// `make` gives the case that each option changes.
template <class Make>
std::vector<OptionCase> cases_of_every_option(DType dtype, Make make) {
  std::vector<OptionCase> all;
  auto add = [&](std::string name, auto&& change) {
    OptionCase one{std::move(name), make(), {.dtype = dtype}};
    change(one.c, one.s);
    all.push_back(std::move(one));
  };
  add("no option", [](auto&, auto&) {});
  add("without bias", [](auto& c, auto&) { c.bias.clear(); });
  add("class weights", [](auto& c, auto& s) { options::class_weights(c, s); });
  add("token weights", [](auto& c, auto& s) { options::token_weights(c, s); });
  add("token weights, some negative, sum",
      [](auto& c, auto& s) { options::reduction(c, s, Reduction::kSum), options::token_weights(c, s, true); });
  add("class and token weights", [](auto& c, auto& s) { options::class_weights(c, s), options::token_weights(c, s); });
  for (double e : {0.1, 1.0}) add(str("smoothing ", e), [e](auto& c, auto&) { c.label_smoothing = e; });
  add("smoothing with class weights", [](auto& c, auto& s) { c.label_smoothing = 0.2, options::class_weights(c, s); });
  for (double cap : {2.0, 30.0}) add(str("softcap ", cap), [cap](auto& c, auto&) { c.softcap = cap; });
  for (double scale : {0.7, -1.3, 0.0})
    add(str("logit scale ", scale), [scale](auto& c, auto&) { c.logit_scale = scale; });
  add("z-loss", [](auto& c, auto&) { c.z_loss = 0.01; });
  add("z-loss with class weights", [](auto& c, auto& s) { c.z_loss = 0.01, options::class_weights(c, s); });
  for (DType type : {DType::kF32, DType::kBf16, DType::kF16, DType::kF64})
    add(str("probabilities of ", name_of(type)),
        [type](auto& c, auto& s) { options::probabilities(c, s, type), s.pad_probabilities = 3; });
  add("probabilities, smoothing, class weights", [](auto& c, auto& s) {
    options::probabilities(c, s, DType::kF32), c.label_smoothing = 0.1, options::class_weights(c, s);
  });
  add("sum", [](auto& c, auto& s) { options::reduction(c, s, Reduction::kSum); });
  add("none, upstream per row", [](auto& c, auto& s) { options::row_upstream(c, s, 1); });
  add("none, upstream stride 3", [](auto& c, auto& s) { options::row_upstream(c, s, 3); });
  add("none, upstream stride 0",
      [](auto& c, auto& s) { options::reduction(c, s, Reduction::kNone), c.upstream = {-1.5}; });
  add("upstream -2", [](auto& c, auto&) { c.upstream = {-2}; });
  add("denominator by pointer", [](auto& c, auto& s) { options::denominator(c, s, 123.5); });
  auto shape = [](auto& c, auto& s) {
    c.softcap = 5, c.logit_scale = 1.2, c.z_loss = 0.001, c.label_smoothing = 0.15;
    options::class_weights(c, s), options::token_weights(c, s, true), options::row_upstream(c, s, 2);
  };
  add("everything with labels", shape);
  add("everything with probabilities",
      [shape](auto& c, auto& s) { options::probabilities(c, s, DType::kBf16), shape(c, s); });
  add("everything, mean by pointer", [shape](auto& c, auto& s) {
    shape(c, s), s.reduction = Reduction::kMean, options::denominator(c, s, 20), c.upstream = {3};
  });
  return all;
}

// The same of random cases of one shape, judged by their terms: some cancel.
inline std::vector<OptionCase> every_option(DType dtype, int64_t rows, int64_t hidden, int64_t vocab, uint64_t seed) {
  std::vector<OptionCase> all =
      cases_of_every_option(dtype, [=] { return random_case(dtype, rows, hidden, vocab, seed); });
  for (OptionCase& o : all) o.s.by_terms = true;
  return all;
}

}  // namespace xce::test

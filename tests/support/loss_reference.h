// The losses by their definitions: plain fp64 loops over whole matrices, sharing nothing with the kernels.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

namespace xce::test {

// What a case asks for, values already rounded to the kernels' dtype.
struct LossCase {
  int64_t rows = 0, hidden = 0, vocab = 0;
  std::vector<double> x, weight, bias;  // bias empty: none
  std::vector<int64_t> labels;
  std::vector<double> probabilities;  // (rows, vocab) instead of labels; empty: labels
  int64_t ignore_index = -100;
  std::vector<double> class_weights, token_weights;  // empty: 1
  double label_smoothing = 0, softcap = 0, logit_scale = 1;
  double z_loss = 0;
  double divisor = 0;            // of the loss; 0 with own_mean false: loss and gradients are zero
  bool own_mean = true;          // divide by the weight sum instead
  std::vector<double> upstream;  // empty: 1; one value: all rows; else per row

  double class_weight(int64_t v) const { return class_weights.empty() ? 1 : class_weights[v]; }
  double token_weight(int64_t i) const { return token_weights.empty() ? 1 : token_weights[i]; }
  bool out_of_range(int64_t i) const {
    return probabilities.empty() && labels[i] != ignore_index && (labels[i] < 0 || labels[i] >= vocab);
  }
  bool valid(int64_t i) const {
    if (token_weight(i) == 0) return false;
    return !probabilities.empty() || (labels[i] != ignore_index && labels[i] >= 0 && labels[i] < vocab);
  }
  // a_v
  double mass(int64_t i, int64_t v) const {
    const double e = label_smoothing, share = e / static_cast<double>(vocab);
    if (!probabilities.empty()) return class_weight(v) * ((1 - e) * probabilities[i * vocab + v] + share);
    return (v == labels[i] ? class_weight(v) * (1 - e) : 0) + share * class_weight(v);
  }
};

struct LossAnswer {
  double loss = 0, z_loss = 0;                                                          // reduced
  std::vector<double> z, row_loss, lse, row_max, entropy, dx, dweight, dbias, dlogits;  // z after scale and softcap
  std::vector<int64_t> argmax;
  int64_t n_valid = 0, out_of_range = 0, first_out_of_range = -1, n_correct = 0;
  double weight_sum = 0, weight_terms = 0;  // the latter of absolute values
  double denominator = 0;
  double max_logit = 0;  // largest |z|
  // The sizes of what is summed, for bars on sums that cancel: |u_i| (sum |a_v| + |2 c lse|) of a row's loss, their sum
  // over |D|, each logit's |g| (|S p| + |a| + |2 c lse p|) and root-sum-squares of the gradients' terms, over a tensor.
  std::vector<double> row_terms, logit_terms;
  double loss_terms = 0, dlogits_terms = 0, dx_terms = 0, dweight_terms = 0, dbias_terms = 0;
};

// Of the linear head, before scale and softcap.
inline std::vector<double> reference_logits(const LossCase& c) {
  std::vector<double> y(c.rows * c.vocab);
  for (int64_t i = 0; i < c.rows; ++i) {
    for (int64_t v = 0; v < c.vocab; ++v) {
      double s = c.bias.empty() ? 0 : c.bias[v];
      for (int64_t h = 0; h < c.hidden; ++h) s += c.x[i * c.hidden + h] * c.weight[v * c.hidden + h];
      y[i * c.vocab + v] = s;
    }
  }
  return y;
}

// Row i of the answer from its logits z after scale and softcap; d the denominator, not 0.
inline void reference_row(const LossCase& c, int64_t i, const std::vector<double>& z, double d, LossAnswer& a) {
  double top = -std::numeric_limits<double>::infinity();
  for (double value : z) top = std::fmax(top, value);
  long double sum = 0, ce = 0;
  for (double value : z) sum += std::exp(value - top);
  const double logsum = static_cast<double>(std::log(sum)), lse = top + logsum;
  double mass = 0, size = 0, entropy = 0;
  for (int64_t v = 0; v < c.vocab; ++v) {
    const double p = std::exp(z[v] - top) / static_cast<double>(sum), m = c.mass(i, v);
    mass += m;
    size += std::fabs(m);
    if (m != 0) ce += m * ((top - z[v]) + logsum);
    if (p > 0) entropy -= p * ((z[v] - top) - logsum);
    if (std::isfinite(z[v])) a.max_logit = std::fmax(a.max_logit, std::fabs(z[v]));
    if (a.argmax[i] < 0 || z[v] > z[a.argmax[i]]) a.argmax[i] = v;
  }
  const double z_loss = c.z_loss == 0 ? 0 : c.z_loss * lse * lse;
  a.lse[i] = lse;
  a.row_max[i] = top;
  a.entropy[i] = entropy;
  a.row_loss[i] = c.token_weight(i) * (static_cast<double>(ce) + z_loss);
  a.row_terms[i] = std::fabs(c.token_weight(i)) * (size + (c.z_loss == 0 ? 0 : std::fabs(2 * c.z_loss * lse)));
  if (c.probabilities.empty() && a.argmax[i] == c.labels[i]) ++a.n_correct;
  if (d == 0) return;
  a.loss += a.row_loss[i] / d;
  a.z_loss += c.token_weight(i) * z_loss / d;
  a.loss_terms += a.row_terms[i] / std::fabs(d);
  const double up = c.upstream.empty() ? 1 : c.upstream.size() == 1 ? c.upstream[0] : c.upstream[i];
  for (int64_t v = 0; v < c.vocab; ++v) {
    const double p = std::exp(z[v] - top) / static_cast<double>(sum);
    const double slope = c.softcap == 0 ? 1 : 1 - (z[v] / c.softcap) * (z[v] / c.softcap);
    const double extra = c.z_loss == 0 ? 0 : 2 * c.z_loss * lse * p;
    const double factor = c.logit_scale * up * c.token_weight(i) / d, m = c.mass(i, v);
    a.dlogits[i * c.vocab + v] = factor * slope * (mass * p - m + extra);
    // 1 - tanh^2 cancels where it is small: its rounding is a small part of a tenth of what it is made of.
    const double made_of = slope + 0.1 * (1 - slope);
    a.logit_terms[i * c.vocab + v] = std::fabs(factor) * made_of * (size * p + std::fabs(m) + std::fabs(extra));
    a.dlogits_terms += a.logit_terms[i * c.vocab + v] * a.logit_terms[i * c.vocab + v];
  }
}

// From given logits: everything but dx, dweight and dbias.
inline LossAnswer reference_cross_entropy(const LossCase& c, const std::vector<double>& y) {
  LossAnswer a;
  for (auto* row : {&a.row_loss, &a.lse, &a.row_max, &a.entropy, &a.row_terms}) row->assign(c.rows, 0);
  a.argmax.assign(c.rows, -1);
  a.dlogits.assign(c.rows * c.vocab, 0);
  a.logit_terms.assign(c.rows * c.vocab, 0);
  a.z.assign(c.rows * c.vocab, 0);
  for (int64_t i = 0; i < c.rows; ++i) {
    if (c.out_of_range(i) && a.out_of_range++ == 0) a.first_out_of_range = i;
    if (!c.valid(i)) continue;
    ++a.n_valid;
    const double weight = c.token_weight(i) * (c.probabilities.empty() ? c.class_weight(c.labels[i]) : 1);
    a.weight_sum += weight;
    a.weight_terms += std::fabs(weight);
  }
  const double d = a.denominator = c.own_mean ? a.weight_sum : c.divisor;
  for (int64_t i = 0; i < c.rows; ++i) {
    if (!c.valid(i)) continue;
    std::vector<double> z(c.vocab);
    for (int64_t v = 0; v < c.vocab; ++v) {
      const double scaled = c.logit_scale * y[i * c.vocab + v];
      z[v] = c.softcap == 0 ? scaled : c.softcap * std::tanh(scaled / c.softcap);
    }
    std::copy(z.begin(), z.end(), a.z.begin() + i * c.vocab);
    reference_row(c, i, z, d, a);
  }
  a.dlogits_terms = std::sqrt(a.dlogits_terms);
  return a;
}

inline LossAnswer reference_linear_cross_entropy(const LossCase& c) {
  LossAnswer a = reference_cross_entropy(c, reference_logits(c));
  a.dx.assign(c.rows * c.hidden, 0);
  a.dweight.assign(c.vocab * c.hidden, 0);
  a.dbias.assign(c.vocab, 0);
  for (int64_t i = 0; i < c.rows; ++i) {
    if (!c.valid(i)) continue;
    const double* x = &c.x[i * c.hidden];
    double x_squares = 0;
    for (int64_t h = 0; h < c.hidden; ++h) x_squares += x[h] * x[h];
    for (int64_t v = 0; v < c.vocab; ++v) {
      const double* w = &c.weight[v * c.hidden];
      const double g = a.dlogits[i * c.vocab + v], terms = a.logit_terms[i * c.vocab + v];
      double w_squares = 0;
      a.dbias[v] += g;
      for (int64_t h = 0; h < c.hidden; ++h) {
        a.dx[i * c.hidden + h] += g * w[h];
        a.dweight[v * c.hidden + h] += g * x[h];
        w_squares += w[h] * w[h];
      }
      a.dx_terms += terms * terms * w_squares;
      a.dweight_terms += terms * terms * x_squares;
      a.dbias_terms += terms * terms;
    }
  }
  for (double* terms : {&a.dx_terms, &a.dweight_terms, &a.dbias_terms}) *terms = std::sqrt(*terms);
  return a;
}

}  // namespace xce::test

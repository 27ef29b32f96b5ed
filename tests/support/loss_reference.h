// The losses by their definitions: plain fp64 loops over whole matrices, sharing nothing with the kernels.
#pragma once

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
  int64_t ignore_index = -100;
  double z_loss = 0;
  double divisor = 0;            // of the loss; 0 with own_mean false: loss and gradients are zero
  bool own_mean = true;          // divide by the number of valid rows instead
  std::vector<double> upstream;  // empty: 1; one value: all rows; else per row

  bool valid(int64_t i) const { return labels[i] != ignore_index && labels[i] >= 0 && labels[i] < vocab; }
};

struct LossAnswer {
  double loss = 0, z_loss = 0;  // reduced
  std::vector<double> row_loss, lse, dx, dweight, dbias, dlogits;
  int64_t n_valid = 0, out_of_range = 0;
  double max_logit = 0;  // largest |z|
};

inline std::vector<double> reference_logits(const LossCase& c) {
  std::vector<double> z(c.rows * c.vocab);
  for (int64_t i = 0; i < c.rows; ++i) {
    for (int64_t v = 0; v < c.vocab; ++v) {
      double s = c.bias.empty() ? 0 : c.bias[v];
      for (int64_t h = 0; h < c.hidden; ++h) s += c.x[i * c.hidden + h] * c.weight[v * c.hidden + h];
      z[i * c.vocab + v] = s;
    }
  }
  return z;
}

// From given logits: everything but dx, dweight and dbias.
inline LossAnswer reference_cross_entropy(const LossCase& c, const std::vector<double>& z) {
  LossAnswer a;
  a.row_loss.assign(c.rows, 0);
  a.lse.assign(c.rows, 0);
  a.dlogits.assign(c.rows * c.vocab, 0);
  for (int64_t i = 0; i < c.rows; ++i) {
    if (c.valid(i)) ++a.n_valid;
    if (!c.valid(i) && c.labels[i] != c.ignore_index) ++a.out_of_range;
  }
  double d = c.own_mean ? static_cast<double>(a.n_valid) : c.divisor;
  for (int64_t i = 0; i < c.rows; ++i) {
    if (!c.valid(i) || d == 0) continue;
    const double* row = &z[i * c.vocab];
    double top = row[0];
    for (int64_t v = 0; v < c.vocab; ++v) top = std::fmax(top, row[v]);
    long double sum = 0;
    for (int64_t v = 0; v < c.vocab; ++v) sum += std::exp(row[v] - top);
    double logsum = static_cast<double>(std::log(sum));
    a.lse[i] = top + logsum;
    double z_loss = c.z_loss == 0 ? 0 : c.z_loss * a.lse[i] * a.lse[i];
    a.row_loss[i] = (top - row[c.labels[i]]) + logsum + z_loss;
    a.loss += a.row_loss[i] / d;
    a.z_loss += z_loss / d;
    double up = c.upstream.empty() ? 1 : c.upstream.size() == 1 ? c.upstream[0] : c.upstream[i];
    for (int64_t v = 0; v < c.vocab; ++v) {
      double p = std::exp(row[v] - top) / static_cast<double>(sum);
      double one = v == c.labels[i] ? 1 : 0;
      double extra = c.z_loss == 0 ? 0 : 2 * c.z_loss * a.lse[i] * p;
      a.dlogits[i * c.vocab + v] = up / d * (p - one + extra);
      if (std::isfinite(row[v])) a.max_logit = std::fmax(a.max_logit, std::fabs(row[v]));
    }
  }
  return a;
}

inline LossAnswer reference_linear_cross_entropy(const LossCase& c) {
  LossAnswer a = reference_cross_entropy(c, reference_logits(c));
  a.dx.assign(c.rows * c.hidden, 0);
  a.dweight.assign(c.vocab * c.hidden, 0);
  a.dbias.assign(c.vocab, 0);
  for (int64_t i = 0; i < c.rows; ++i) {
    if (!c.valid(i)) continue;
    for (int64_t v = 0; v < c.vocab; ++v) {
      double g = a.dlogits[i * c.vocab + v];
      a.dbias[v] += g;
      for (int64_t h = 0; h < c.hidden; ++h) {
        a.dx[i * c.hidden + h] += g * c.weight[v * c.hidden + h];
        a.dweight[v * c.hidden + h] += g * c.x[i * c.hidden + h];
      }
    }
  }
  return a;
}

}  // namespace xce::test

// Inner loops over a run of one row's logits: softcap, maximum, exponentials and their sums, the gradient. NaN survives
// in the sum. Plain calls need maximum and sum alone; what others add to a row is in loops of their own.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "kernels/cpu/vec.h"
#include "kernels/cross_entropy/loss_rows.h"

namespace xce::loss {

template <class A>
struct TileStats {
  A max, sum;
};
// Of calls with Extras; see LossMergeStatistics. argmax is an index into the run, -1 without.
template <class A>
struct TileExtras {
  A mass_logits, mass, entropy, argmax;
};

// As statistics of the row, whose column `first_label` is the run's first.
template <class A>
RowStatistics row_statistics(const TileStats<A>& stats, const TileExtras<A>* extras, int64_t first_label) {
  RowStatistics s;
  s.max = static_cast<double>(stats.max), s.sum = static_cast<double>(stats.sum);
  if (!extras) return s;
  s.mass_logits = static_cast<double>(extras->mass_logits), s.mass = static_cast<double>(extras->mass);
  s.entropy = static_cast<double>(extras->entropy);
  if (extras->argmax >= 0) s.argmax = static_cast<double>(extras->argmax) + static_cast<double>(first_label);
  return s;
}

// From y to z.
template <class A>
struct LogitMap {
  A scale, cap;  // cap 0: none
  explicit LogitMap(const LossOptions& options)
      : scale(static_cast<A>(options.logit_scale)), cap(static_cast<A>(options.softcap)) {}
  bool is_identity() const { return scale == 1 && cap == 0; }

  void apply(A* z, int64_t n) const {
    if (is_identity()) return;
    const A outside = cap, inside = cap == 0 ? scale : scale / cap;  // not members: z might be one of them
    if (outside == 0) {
#pragma omp simd
      for (int64_t v = 0; v < n; ++v) z[v] *= inside;
    } else {
#pragma omp simd
      for (int64_t v = 0; v < n; ++v) z[v] = outside * cpu::tanh(z[v] * inside);
    }
  }
};

// The largest value, NaN skipped; -inf when there is none.
template <class A>
A row_max(const A* z, int64_t n) {
  A top = -std::numeric_limits<A>::infinity();
#pragma omp simd reduction(max : top)
  for (int64_t v = 0; v < n; ++v) top = z[v] > top ? z[v] : top;
  return top;
}

// The first index at which z is `value`, -1 without; n below 2^31.
template <class A>
int32_t first_equal(const A* z, int64_t n, A value) {
  const int32_t end = static_cast<int32_t>(n);
  int32_t at = end;
#pragma omp simd reduction(min : at)
  for (int32_t v = 0; v < end; ++v) {
    const int32_t here = z[v] == value ? v : end;
    at = here < at ? here : at;
  }
  return at == end ? -1 : at;
}

// z += bias.
template <class A, class T>
void add_bias(A* z, const T* bias, int64_t n) {
#pragma omp simd
  for (int64_t v = 0; v < n; ++v) z[v] += cpu::load(bias, v);
}

// What exponentials are relative to: a run of -inf alone is empty, all zero.
template <class A>
A exponent_base(A top) {
  return top == -std::numeric_limits<A>::infinity() ? A(0) : top;
}

// z <- exp(z - max) in place; returns max and the sum.
template <class A>
TileStats<A> exponentials(A* z, int64_t n) {
  A top = row_max(z, n), sum = 0;
  A base = exponent_base(top);
#pragma omp simd reduction(+ : sum)
  for (int64_t v = 0; v < n; ++v) {
    A e = cpu::exp(z[v] - base);
    z[v] = e;
    sum += e;
  }
  return {top, sum};
}

// The same with the sum of exp(z - max) (z - max); z stays with kKeepLogits.
template <bool kKeepLogits, class A>
A exponentials_and_entropy(A* z, int64_t n, A base, A& entropy) {
  A sum = 0, weighted = 0;
#pragma omp simd reduction(+ : sum, weighted)
  for (int64_t v = 0; v < n; ++v) {
    A x = z[v] - base, e = cpu::exp(x);
    if constexpr (!kKeepLogits) z[v] = e;
    sum += e;
    weighted += e > 0 ? e * x : A(0);  // not 0 * -inf
  }
  entropy = weighted;
  return sum;
}

// The target's mass on runs of columns: of labels what smoothing gives every column, the same in each row.
template <class A>
class MassReader {
 public:
  MassReader(const LossTargets& targets, const LossOptions& options, int64_t vocab, int64_t vocab_global,
             int64_t shard_offset)
      : targets_(targets),
        ld_(targets.ld_probabilities ? targets.ld_probabilities : vocab),
        weights_(static_cast<const A*>(options.class_weights)),
        keep_(static_cast<A>(1 - options.label_smoothing)),
        each_(static_cast<A>(options.label_smoothing / static_cast<double>(vocab_global))) {
    if (weights_) weights_ += shard_offset;
  }
  bool by_row() const { return targets_.probabilities != nullptr; }

  // mass <- a_v of n columns of row i of the call, without what only the label has.
  void read(int64_t i, int64_t first, int64_t n, A* mass) const {
    if (by_row())
      read_probabilities(i * ld_ + first, n, mass);
    else
      std::fill_n(mass, n, each_);
    if (!weights_) return;
    const A* w = weights_ + first;
#pragma omp simd
    for (int64_t v = 0; v < n; ++v) mass[v] *= w[v];
  }
  // S of row i: what the caller says, or the sum over all `cols` columns.
  double sum(int64_t i, int64_t cols) const {
    if (targets_.probability_mass) return targets_.probability_mass[i];
    constexpr int64_t kBlock = 512;
    A mass[kBlock];
    double total = 0;
    for (int64_t at = 0; at < cols; at += kBlock) {
      const int64_t n = std::min(kBlock, cols - at);
      read(i, at, n, mass);
#pragma omp simd reduction(+ : total)
      for (int64_t v = 0; v < n; ++v) total += static_cast<double>(mass[v]);
    }
    return total;
  }

 private:
  void read_probabilities(int64_t at, int64_t n, A* mass) const {
    visit_loss_dtype(targets_.probability_type, [&, keep = keep_, each = each_]<class P>(std::type_identity<P>) {
      const P* from = static_cast<const P*>(targets_.probabilities) + at;
#pragma omp simd
      for (int64_t v = 0; v < n; ++v) mass[v] = keep * static_cast<A>(cpu::load(from, v)) + each;
    });
  }

  LossTargets targets_;
  int64_t ld_;
  const A* weights_;
  A keep_, each_;
};

// Sums of a_v (z_v - base) and of a_v over a_v != 0. The latter in fp64: S p - a cancels, and equal shares added up in
// fp32 are off by a part in 10^5 where the loop is not vectorised.
template <class A>
void mass_sums(const A* z, const A* mass, int64_t n, A base, TileExtras<A>& to) {
  A logits = 0;
  double all = 0;
#pragma omp simd reduction(+ : logits, all)
  for (int64_t v = 0; v < n; ++v) {
    const A a = mass[v];
    logits += a != 0 ? a * (z[v] - base) : A(0);  // not 0 * -inf
    all += static_cast<double>(a);
  }
  to.mass_logits = logits, to.mass = static_cast<A>(all);
}

// All that a run gives its row, with what `wanted` asks for in `extras`, which may be null when that is nothing.
// z <- exp(z - max), or z as it is with keep_logits; mass null: none asked for.
template <class A>
TileStats<A> run_statistics(const Extras& wanted, A* z, const A* mass, int64_t n, bool keep_logits,
                            TileExtras<A>* extras) {
  const A top = row_max(z, n), base = exponent_base(top);
  TileExtras<A> to{0, 0, 0, -1};
  if (wanted.argmax) to.argmax = static_cast<A>(first_equal(z, n, top));
  if (mass) mass_sums(z, mass, n, base, to);
  A entropy;
  const A sum = keep_logits ? exponentials_and_entropy<true>(z, n, base, entropy)
                            : exponentials_and_entropy<false>(z, n, base, entropy);
  if (wanted.entropy) to.entropy = entropy;
  if (extras) *extras = to;
  return {top, sum};
}

// A row's part in its gradient by y: g [(S + extra) p_v - a_v] (1 - (z_v / cap)^2).
template <class A>
struct RowGradient {
  double g, total, extra;  // row_factor; S; 2 z_loss lse
  double at_label;         // the label's mass above the others'
  A offset, logsum;

  // The residual and what depends on it.
  void set_residual(const LossOptions& options, const Mass& mass, double row_mass, A row_offset, A row_logsum) {
    offset = row_offset, logsum = row_logsum;
    total = mass.by_row ? row_mass : mass.total;
    at_label = mass.at_label;
    const double lse = static_cast<double>(offset) + static_cast<double>(logsum);
    extra = options.z_loss != 0 ? 2 * options.z_loss * lse : 0;
  }
};

// z <- k * exp((z - offset) - logsum).
template <class A>
void scaled_softmax(A* z, int64_t n, A offset, A logsum, A k) {
#pragma omp simd
  for (int64_t v = 0; v < n; ++v) z[v] = k * cpu::exp((z[v] - offset) - logsum);
}

template <class A>
void scale(A* z, int64_t n, A k) {
#pragma omp simd
  for (int64_t v = 0; v < n; ++v) z[v] *= k;
}

// The gradient where mass or softcap change every element: g (k p - a) slope, p from z, or with kExponentials from
// exp(z - max) and its factor.
template <bool kExponentials, bool kMass, bool kCap, class A>
void mixed_gradient(A* z, const A* mass, int64_t n, const RowGradient<A>& r, A factor, A cap) {
  const A g = static_cast<A>(r.g), k = static_cast<A>(r.total + r.extra) * factor, inverse = kCap ? 1 / cap : A(0);
  const A offset = r.offset, logsum = r.logsum;
#pragma omp simd
  for (int64_t v = 0; v < n; ++v) {
    A x = z[v], p = kExponentials ? x : cpu::exp((x - offset) - logsum), d = k * p;
    if constexpr (kMass) d -= mass[v];
    d *= g;
    if constexpr (kCap) d *= 1 - (x * inverse) * (x * inverse);
    z[v] = d;
  }
}

// A run to its gradient. It holds z, or with tile_max exp(z - tile_max), which no call with softcap keeps. mass null:
// none but the label's; y: the label's index in the run, or outside of it. The label's element is found in fp64 and
// rounded once: its terms may be small beside g.
template <class A>
void gradient_run(A* z, const A* mass, int64_t n, int64_t y, const RowGradient<A>& r, const A* tile_max, A cap) {
  const bool has_label = y >= 0 && y < n;
  const A factor = tile_max ? std::exp((*tile_max - r.offset) - r.logsum) : A(1);
  double label_gradient = 0;
  if (has_label) {
    const double p = static_cast<double>(tile_max ? z[y] * factor : std::exp((z[y] - r.offset) - r.logsum));
    const double a = r.at_label + (mass ? static_cast<double>(mass[y]) : 0.0);
    const double t = cap == 0 ? 0.0 : static_cast<double>(z[y]) / static_cast<double>(cap);
    label_gradient = r.g * ((r.total * p - a) + r.extra * p) * (1 - t * t);
  }
  if (!mass && cap == 0) {
    const A k = static_cast<A>(r.g * (r.total + r.extra));
    if (tile_max)
      scale(z, n, k * factor);
    else
      scaled_softmax(z, n, r.offset, r.logsum, k);
  } else if (!mass) {
    mixed_gradient<false, false, true>(z, mass, n, r, factor, cap);
  } else if (cap != 0) {
    mixed_gradient<false, true, true>(z, mass, n, r, factor, cap);
  } else if (tile_max) {
    mixed_gradient<true, true, false>(z, mass, n, r, factor, cap);
  } else {
    mixed_gradient<false, true, false>(z, mass, n, r, factor, cap);
  }
  if (has_label) z[y] = static_cast<A>(label_gradient);
}

// out[v] (+)= sum over rows of tile[row * cols + v], for a tile of rows packed cols apart.
template <class A>
void column_sums(const A* tile, int64_t rows, int64_t cols, A* out, bool accumulate) {
  constexpr int64_t kBlock = 256;
  A sums[kBlock];
  for (int64_t at = 0; at < cols; at += kBlock) {
    int64_t n = cols - at < kBlock ? cols - at : kBlock;
    for (int64_t v = 0; v < n; ++v) sums[v] = 0;
    for (int64_t i = 0; i < rows; ++i) {
      const A* row = tile + i * cols + at;
#pragma omp simd
      for (int64_t v = 0; v < n; ++v) sums[v] += row[v];
    }
    for (int64_t v = 0; v < n; ++v) out[at + v] = accumulate ? out[at + v] + sums[v] : sums[v];
  }
}

}  // namespace xce::loss

// Inner loops over a run of one row's logits: maximum, exponentials and their sum, probabilities. NaN survives in the
// sum.
#pragma once

#include <cstdint>
#include <limits>

#include "kernels/cpu/vec.h"

namespace xce::loss {

template <class A>
struct TileStats {
  A max, sum;
};

// The largest value, NaN skipped; -inf when there is none.
template <class A>
A row_max(const A* z, int64_t n) {
  A top = -std::numeric_limits<A>::infinity();
#pragma omp simd reduction(max : top)
  for (int64_t v = 0; v < n; ++v) top = z[v] > top ? z[v] : top;
  return top;
}

// z += bias.
template <class A, class T>
void add_bias(A* z, const T* bias, int64_t n) {
#pragma omp simd
  for (int64_t v = 0; v < n; ++v) z[v] += cpu::load(bias, v);
}

// z <- exp(z - max) in place; returns max and the sum. A run of -inf alone is empty: max -inf, all zero.
template <class A>
TileStats<A> exponentials(A* z, int64_t n) {
  A top = row_max(z, n), sum = 0;
  A base = top == -std::numeric_limits<A>::infinity() ? A(0) : top;
#pragma omp simd reduction(+ : sum)
  for (int64_t v = 0; v < n; ++v) {
    A e = cpu::exp(z[v] - base);
    z[v] = e;
    sum += e;
  }
  return {top, sum};
}

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

// The target's g (p - 1) + extra p, rounded once: both terms may be small beside g.
template <class A>
A target_gradient(A p, double g, double extra) {
  return static_cast<A>(g * (static_cast<double>(p) - 1) + extra * static_cast<double>(p));
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

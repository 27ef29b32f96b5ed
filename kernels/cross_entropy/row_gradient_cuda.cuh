// A block's gradient of its row: (k p_v - g a_v) (1 - (z_v / cap)^2) with k = g (S + 2 z_loss lse), subtracted in
// accum_dtype before the only rounding; the label's element in fp64, by the thread whose vector holds it. A gradient
// may overwrite its logits, also in a narrower type (it then fills each row's first half): every element is read before
// anything is written over it.
#pragma once

#include "kernels/cross_entropy/rows_cuda.cuh"

namespace xce::loss {

template <int W, class Out>
__device__ inline void write_gradient(Out* row, int64_t col, int64_t cols_out, const cuda::Vec<Out, W>& v) {
  if (col + W <= cols_out) {
    cuda::store<W>(row + col, v);
  } else {
#pragma unroll
    for (int j = 0; j < W; ++j)
      if (col + j < cols_out) row[col + j] = v.at[j];
  }
}

template <class In, class Out>
__device__ inline void zero_input(const DeviceRows<In, Out>& r, int64_t i) {
  if (!r.x) return;
  for (int64_t h = threadIdx.x; h < r.hidden; h += blockDim.x) r.x[i * r.hidden + h] = cuda::narrow<Out>(0);
}

// A row's factors. Plain: its label has all of the mass.
template <class Out, bool kGeneral>
struct RowGradient {
  using A = Accum<Out>;
  double lse, of_p, of_label;  // the label's element is of_p p - of_label
  A k, g;                      // of p, of a_v
  int y;                       // the label's column here, or -1

  // g: the row's factor. total: S of plain rows and of probabilities.
  template <class In>
  __device__ RowGradient(const DeviceRows<In, Out>& r, const RowTarget& target, double g, double lse, double total)
      : lse(lse), of_label(total), y(-1) {
    if (!kGeneral || target.label != kNoLabel) {
      const int64_t column = target.label - r.first_col;
      if (column >= 0 && column < r.cols) y = static_cast<int>(column);
    }
    if constexpr (kGeneral) {
      if (target.label != kNoLabel) {
        const Mass mass = mass_of<A>(r.options, *r.totals, target.label, r.vocab_global);
        total = mass.total;
        of_label = mass.at_label + mass.each * class_weight<A>(r.options, target.label);
      }
    }
    of_p = g * total + (r.options.z_loss != 0 ? g * 2 * r.options.z_loss * lse : 0);
    of_label *= g;
    k = static_cast<A>(of_p);
    this->g = static_cast<A>(g);
  }
  __device__ Out at_label(double p, double slope) const { return cuda::rounded<Out>((of_p * p - of_label) * slope); }
  // Of columns col .. col + W from p, which scaled are the probabilities; factor = k * scale. 0 beyond `cols`.
  template <int W>
  __device__ cuda::Vec<Out, W> finish(const cuda::Vec<A, W>& p, A factor, int col, int cols, A scale) const {
    cuda::Vec<Out, W> out;
#pragma unroll
    for (int j = 0; j < W; ++j) out.at[j] = cuda::narrow<Out>(factor * p.at[j]);
    if (y >= col && y < col + W) {
#pragma unroll
      for (int j = 0; j < W; ++j)
        if (col + j == y) out.at[j] = at_label(static_cast<double>(p.at[j] * scale), 1);
    }
    if (col + W > cols) {
#pragma unroll
      for (int j = 0; j < W; ++j)
        if (col + j >= cols) out.at[j] = cuda::narrow<Out>(A(0));
    }
    return out;
  }
};
template <class In, class Out>
__device__ inline double factor_of(const DeviceRows<In, Out>& r, const RowTarget& target, double d, int64_t i) {
  const double g = row_factor<Accum<Out>>(r.upstream, r.options, target.token_weight, d, r.first_row + i);
  return std::is_same_v<Out, F16> && r.gradient_scale ? g / static_cast<double>(*r.gradient_scale) : g;
}

template <class In, int W>
constexpr int kGradientBatch = kBatch<In, W, 64>;

// dlogits of a whole row from its logits.
template <int W, bool kGeneral, class In, class Out>
struct GradientWriter {
  using A = Accum<Out>;

  const DeviceRows<In, Out>& r;
  const RowGradient<Out, kGeneral>& gradient;
  RowSpan<W> span;
  LogitMap<A> map;
  ColumnMass<A> masses;
  Exponential<A> exponential;
  const In* row;
  Out* out;
  A factor;  // of exponentials

  __device__ GradientWriter(const DeviceRows<In, Out>& r, const RowGradient<Out, kGeneral>& gradient, int64_t i,
                            RowThreads by)
      : r(r),
        gradient(gradient),
        span(r, i, by),
        map(r.options),
        masses(r, i),
        exponential(gradient.lse),
        row(r.logits + i * r.ld),
        out(r.dlogits + i * r.ld_out),
        factor(gradient.k * exponential.repair()) {}

  template <int N>
  __device__ cuda::Vec<Out, N> of(const cuda::Vec<In, N>& logits, int col) const {
    auto z = map(r, logits, col);
    cuda::Vec<Out, N> result;
    if constexpr (kGeneral) {
      cuda::Vec<A, N> a{};
      if (masses.any) a = masses.template of<N>(col);
#pragma unroll
      for (int j = 0; j < N; ++j) {
        const Capped<A> at = map.cap_of(z.at[j]);
        A value = factor * exponential(at.z);
        if (a.at[j] != 0) value -= gradient.g * a.at[j];
        result.at[j] = cuda::narrow<Out>(value * at.slope);
      }
    } else {
#pragma unroll
      for (int j = 0; j < N; ++j) result.at[j] = cuda::narrow<Out>(factor * exponential(z.at[j]));
    }
    return result;
  }

  // The whole row from memory.
  __device__ void write() {
    Raw<In, W> raw[kGradientBatch<In, W>];
    load_batch(raw, row, span, span.first(span.head));
    write_from_first(raw);
  }
  // The same where the first batch is at hand.
  template <int U>
  __device__ void write_from_first(Raw<In, W> (&raw)[U]) {
    begin();
    for (int at = span.head; at < span.tail; at += span.template batch<U>()) {
      if (at > span.head) load_batch(raw, row, span, span.first(at));
      // This step writes over logits of this and earlier steps, and over what begin() read.
      if constexpr (kNarrows) __syncthreads();
      write_batch(raw, span.first(at));
    }
    if constexpr (kNarrows) __syncthreads();
    end();
  }
  // The same where the last batch is at hand: backwards, because what was read last is likeliest still in the cache.
  template <int U>
  __device__ void write_from_last(Raw<In, W> (&raw)[U]) {
    static_assert(!kNarrows);
    begin();
    const int batch = span.template batch<U>();
    int at = span.head + (span.tail - span.head - 1) / batch * batch;
    if (at < span.tail) write_batch(raw, span.first(at));
    for (at -= batch; at >= span.head; at -= batch) {
      load_batch(raw, row, span, span.first(at));
      write_batch(raw, span.first(at));
    }
    end();
  }

 private:
  static constexpr bool kNarrows = sizeof(Out) < sizeof(In);
  bool owns_label = false;
  Capped<A> label{};
  cuda::Vec<In, 1> edge{};

  // What is read apart from vectors.
  __device__ void begin() {
    owns_label = span.owns(gradient.y);
    if (owns_label) label = z_at(r, map, row, gradient.y);
    if (span.edge >= 0) edge.at[0] = row[span.edge];
  }
  template <int U>
  __device__ void write_batch(Raw<In, W> (&raw)[U], int first) const {
#pragma unroll
    for (int u = 0; u < U; ++u) {
      const int col = first + u * span.stride();
      if (col < span.tail) cuda::store<W>(out + col, of(raw[u].values(), col));
    }
  }
  __device__ void end() const {
    if (span.edge >= 0) out[span.edge] = of(edge, span.edge).at[0];
    if (owns_label) out[gradient.y] = gradient.at_label(exp(static_cast<double>(label.z) - gradient.lse), label.slope);
    for (int64_t col = r.cols + span.by.thread; col < r.cols_out; col += span.by.threads)
      out[col] = cuda::narrow<Out>(0);
  }
};

template <int W, class In, class Out>
__device__ inline void zero_gradient(const DeviceRows<In, Out>& r, int64_t i, RowThreads by) {
  Out* out = r.dlogits + i * r.ld_out;
  const RowSpan<W> span(r, i, by);
  const cuda::Vec<Out, W> zeros{};
  for (int col = span.first(span.head); col < span.tail; col += span.stride()) cuda::store<W>(out + col, zeros);
  if (span.edge >= 0) out[span.edge] = cuda::narrow<Out>(0);
  for (int64_t col = r.cols + span.by.thread; col < r.cols_out; col += span.by.threads) out[col] = cuda::narrow<Out>(0);
}

// S of row i, in the general variant of probabilities alone, from wherever it is known; all threads call it.
template <bool kGeneral, class In, class Out>
__device__ inline double total_mass(const DeviceRows<In, Out>& r, const RowTarget& target, int64_t i) {
  if constexpr (!kGeneral) return class_weight<Accum<Out>>(r.options, target.label);
  if (!r.targets.probabilities) return 0;
  if (r.targets.probability_mass) return r.targets.probability_mass[r.first_row + i];
  return r.mass ? r.mass[i] : column_mass(r, i, r.cols);
}

}  // namespace xce::loss

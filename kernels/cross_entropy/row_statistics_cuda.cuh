// A block's statistics of its row, one read of the logits: the plain variant keeps (max, sum), the general one also
// the target's mass, the entropy and the argmax. Sums are relative to the maximum so far, rescaled once per batch of
// loads.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "kernels/cross_entropy/rows_cuda.cuh"

namespace xce::loss {

// (max, sum of exp(z - max)) of a part of a row.
template <class A>
struct Part {
  A max = minus_infinity<A>(), sum = 0;
  __device__ static A base_of(A top) { return top == minus_infinity<A>() ? A(0) : top; }
  __device__ A scaled(A top) const {
    return max == top || max == minus_infinity<A>() ? sum : sum * Exponential<A>(A(0))(max - top);
  }
  __device__ void rebase(A top) { sum = scaled(top), max = top; }
  __device__ void merge(Part other) {
    const A top = larger(max, other.max);
    sum = scaled(top) + other.scaled(top), max = top;
  }
};

template <class A>
__device__ inline A warp_max(A value) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) value = larger(value, __shfl_xor_sync(~0u, value, offset));
  return value;
}
template <class A>
__device__ inline Part<A> merge_warp(Part<A> mine) {
  mine.rebase(warp_max(mine.max));
  mine.sum = cuda::warp_sum(mine.sum);
  return mine;
}
// Every thread of the block calls it and gets the whole.
template <class A>
__device__ inline Part<A> merge_block(Part<A> mine) {
  __shared__ A max[32], sum[32];
  mine = merge_warp(mine);
  const int lane = threadIdx.x % 32, warps = blockDim.x / 32;
  if (lane == 0) max[threadIdx.x / 32] = mine.max, sum[threadIdx.x / 32] = mine.sum;
  __syncthreads();
  Part<A> all;
  if (lane < warps) all = {max[lane], sum[lane]};
  all = merge_warp(all);
  __syncthreads();  // before the next call writes
  return all;
}

__device__ inline float largest_of(const cuda::Packed<Bf16, 8>& packed) {
  __nv_bfloat162 pair[4];
  memcpy(pair, &packed, sizeof(pair));
  const __nv_bfloat162 top = __hmax2(__hmax2(pair[0], pair[1]), __hmax2(pair[2], pair[3]));
  return fmaxf(__low2float(top), __high2float(top));
}
__device__ inline float largest_of(const cuda::Packed<F16, 8>& packed) {
  __half2 pair[4];
  memcpy(pair, &packed, sizeof(pair));
  const __half2 top = __hmax2(__hmax2(pair[0], pair[1]), __hmax2(pair[2], pair[3]));
  return fmaxf(__low2float(top), __high2float(top));
}

// Adds U vectors, of which those with col >= tail are not there. They are converted twice, for the maximum and for the
// sum, rather than kept as more registers.
template <int U, int W, class In, class Out>
__device__ inline void add_batch(Part<Accum<Out>>& part, const DeviceRows<In, Out>& r, const LogitMap<Accum<Out>>& map,
                                 Raw<In, W> (&raw)[U], const RowSpan<W>& span, int first) {
  using A = Accum<Out>;
  auto column = [&](int u) { return first + u * span.stride(); };
  A top = part.max;
#pragma unroll
  for (int u = 0; u < U; ++u) {
    if (column(u) >= span.tail) continue;
    if constexpr (sizeof(In) == 2 && W > 1) {
      if (!map.scaled) {
        top = larger(top, largest_of(raw[u].part[0]));
        continue;
      }
    }
    const auto z = map(r, raw[u].values(), column(u));
#pragma unroll
    for (int j = 0; j < W; ++j) top = larger(top, z.at[j]);
  }
  if (top > part.max) part.rebase(top);
  const Exponential<A> exponential(part.base_of(top));
  A sum = 0;
#pragma unroll
  for (int u = 0; u < U; ++u) {
    if (column(u) >= span.tail) continue;
    const auto z = map(r, raw[u].values(), column(u));
#pragma unroll
    for (int j = 0; j < W; ++j) sum += exponential(z.at[j]);
  }
  part.sum += sum * exponential.repair();
}

// A part of a row with everything that calls may ask for.
template <class A>
struct GeneralPart {
  Part<A> part;
  A mass_logits = 0, mass = 0, entropy = 0;
  int argmax = -1;  // a column

  __device__ void rebase(A top) {
    if (part.max == top) return;
    if (part.max != minus_infinity<A>()) {
      const A shift = part.max - top, factor = Exponential<A>(A(0))(shift);
      entropy = (entropy + part.sum * shift) * factor;
      part.sum *= factor;
      if (mass != 0) mass_logits += mass * shift;
    }
    part.max = top;
  }
  template <int W>
  __device__ void add(const LogitMap<A>& map, cuda::Vec<A, W> z, const ColumnMass<A>& masses, bool wants_entropy,
                      int col) {
    A top = part.max;
#pragma unroll
    for (int j = 0; j < W; ++j) {
      z.at[j] = map.cap_of(z.at[j]).z;
      // As unsigned -1 is the largest. The edge comes last, and may be a lower column.
      const bool lower = static_cast<unsigned>(col + j) < static_cast<unsigned>(argmax);
      if (z.at[j] > top || (lower && z.at[j] == top)) top = z.at[j], argmax = col + j;
    }
    rebase(top);
    const A base = part.base_of(top);
    const Exponential<A> exponential(base);
    const A repair = exponential.repair();
#pragma unroll
    for (int j = 0; j < W; ++j) {
      const A e = exponential(z.at[j]) * repair;
      part.sum += e;
      if (wants_entropy && e > 0) entropy += e * (z.at[j] - base);
    }
    if (!masses.any) return;
    const auto a = masses.template of<W>(col);
#pragma unroll
    for (int j = 0; j < W; ++j)
      if (a.at[j] != 0) mass_logits += a.at[j] * (z.at[j] - base), mass += a.at[j];
  }
  // Every thread of the block calls it and gets the whole.
  __device__ void merge_block() {
    __shared__ A tops[32];
    __shared__ int columns[32];
    const int lane = threadIdx.x % 32, warps = blockDim.x / 32, warp = threadIdx.x / 32;
    const A warp_top = warp_max(part.max);
    if (lane == 0) tops[warp] = warp_top;
    __syncthreads();
    const A top = warp_max(lane < warps ? tops[lane] : minus_infinity<A>());
    const unsigned column = argmax >= 0 && part.max == top ? static_cast<unsigned>(argmax) : ~0u;
    const unsigned lowest = __reduce_min_sync(~0u, column);
    if (lane == 0) columns[warp] = static_cast<int>(lowest);
    rebase(top);
    A sums[4] = {part.sum, mass_logits, mass, entropy};
    cuda::block_sums(sums);
    part.sum = sums[0], mass_logits = sums[1], mass = sums[2], entropy = sums[3];
    argmax = static_cast<int>(__reduce_min_sync(~0u, lane < warps ? static_cast<unsigned>(columns[lane]) : ~0u));
  }
};

// This thread's part of row i; `raw` then holds its last batch.
template <bool kGeneral, int W, int U, class In, class Out>
__device__ inline auto thread_statistics(const DeviceRows<In, Out>& r, int64_t i, RowThreads by, Raw<In, W> (&raw)[U]) {
  using A = Accum<Out>;
  const RowSpan<W> span(r, i, by);
  const LogitMap<A> map(r.options);
  const In* row = r.logits + i * r.ld;
  std::conditional_t<kGeneral, GeneralPart<A>, Part<A>> part;
  [[maybe_unused]] const ColumnMass<A> masses(r, i);
  [[maybe_unused]] const bool wants_entropy = r.extras.entropy;
  for (int at = span.head; at < span.tail; at += span.template batch<U>()) {
    const int first = span.first(at);
    load_batch(raw, row, span, first);
    if constexpr (kGeneral) {
#pragma unroll
      for (int u = 0; u < U; ++u) {
        const int col = first + u * span.stride();
        if (col < span.tail) part.template add<W>(map, map(r, raw[u].values(), col), masses, wants_entropy, col);
      }
    } else {
      add_batch(part, r, map, raw, span, first);
    }
  }
  if (W > 1 && span.edge >= 0) {
    const cuda::Vec<In, 1> logit{row[span.edge]};
    const auto z = map(r, logit, span.edge);
    if constexpr (kGeneral) {
      part.template add<1>(map, z, masses, wants_entropy, span.edge);
    } else {
      part.rebase(larger(part.max, z.at[0]));
      const Exponential<A> exponential(part.base_of(part.max));
      part.sum += exponential(z.at[0]) * exponential.repair();
    }
  }
  return part;
}

template <class A>
__device__ inline RowStatistics statistics_of(const Part<A>& part) {
  RowStatistics s;
  s.max = static_cast<double>(part.max), s.sum = static_cast<double>(part.sum);
  return s;
}
// All threads get the statistics, but for the label's logit.
template <bool kGeneral, int W, int U, class In, class Out>
__device__ inline RowStatistics block_statistics(const DeviceRows<In, Out>& r, int64_t i, Raw<In, W> (&raw)[U]) {
  auto part = thread_statistics<kGeneral>(r, i, of_block(), raw);
  if constexpr (!kGeneral) {
    return statistics_of(merge_block(part));
  } else {
    part.merge_block();
    RowStatistics s = statistics_of(part.part);
    s.mass_logits = static_cast<double>(part.mass_logits), s.mass = static_cast<double>(part.mass);
    s.entropy = static_cast<double>(part.entropy);
    if (r.extras.argmax && part.argmax >= 0) s.argmax = static_cast<double>(r.first_col + part.argmax);
    return s;
  }
}

}  // namespace xce::loss

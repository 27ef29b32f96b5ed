// Rows of logits on a GPU, one block to a row, shared by both losses: statistics, loss, gradient. Every sum has a fixed
// order. A gradient may overwrite its logits, also in a narrower type (it then fills each row's first half): every
// element is read before anything is written over it.
#pragma once

#include "kernels/base/cuda_check.h"
#include "kernels/cross_entropy/loss_rows.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/vec.cuh"

namespace xce::loss {

constexpr int kRowThreads = 512;  // at most

__device__ inline int64_t device_label(const LossTargets& targets, int64_t row) {
  const int64_t at = row * targets.stride;
  return targets.type == IndexType::kI32 ? static_cast<const int32_t*>(targets.index)[at]
                                         : static_cast<const int64_t*>(targets.index)[at];
}

// Row statistics by chunk row.
template <class A>
struct DeviceSet {
  A *max, *sum, *target;
};

// What one launch knows of its rows; row i of it is row first_row + i of the call.
template <class In, class Out>
struct DeviceRows {
  using A = Accum<Out>;
  const In* logits;  // rows ld apart
  const Out* bias;   // of the first column here, or null
  Out* dlogits;      // rows ld_out apart
  int64_t ld, ld_out;
  int64_t rows, cols;
  int64_t cols_out;   // >= cols: columns of dlogits, the last ones 0
  int64_t first_row;  // of the call
  int64_t first_col;  // global label of the first column here
  int64_t vocab_global;
  LossTargets targets;
  LossOptions options;
  LossUpstream upstream;
  LossOutputs out;
  Totals* totals;
  double *row_loss, *row_z_loss;  // summed by sum_losses
  A *offset, *logsum;             // the residual, by chunk row
  Out* x;                         // packed inputs that a zero denominator makes zero, or null
  int64_t hidden;

  __device__ int64_t label(int64_t i) const { return device_label(targets, first_row + i); }
};

// totals = the counts of all rows, sums 0.
void count_on_device(const CudaExec& exec, const LossTargets& targets, int64_t rows, int64_t vocab_global,
                     Totals* totals);
// Adds the rows' losses to totals; with `last`, stores the reduced results.
void sum_losses(const CudaExec& exec, DType dtype, const double* row_loss, const double* row_z_loss, int64_t rows,
                Totals* totals, bool last, const LossOptions& options, const LossOutputs& out);

template <class A>
__device__ inline A minus_infinity() {
  return -static_cast<A>(INFINITY);
}

// exp(x) as exactly as gradients of type T show it.
template <class T>
__device__ inline Accum<T> exponential(Accum<T> x) {
  if constexpr (std::is_same_v<T, Bf16>) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x * 1.4426950408889634f));
    return y;
  } else {
    return exp(x);
  }
}

// (max, sum of exp(z - max)) of a part of a row; see MaxSum.
template <class T>
struct Part {
  using A = Accum<T>;
  A max, sum;
  __device__ static Part empty() { return {minus_infinity<A>(), A(0)}; }
  __device__ A scaled(A top) const {
    return max == top || max == minus_infinity<A>() ? sum : sum * exponential<T>(max - top);
  }
  __device__ void merge(Part other) {
    const A top = other.max > max ? other.max : max;
    sum = scaled(top) + other.scaled(top);
    max = top;
  }
  template <int W>
  __device__ void add(const cuda::Vec<A, W>& z) {
    A top = max;
#pragma unroll
    for (int j = 0; j < W; ++j) top = z.at[j] > top ? z.at[j] : top;
    sum = scaled(top);
    max = top;
    const A base = top == minus_infinity<A>() ? A(0) : top;
#pragma unroll
    for (int j = 0; j < W; ++j) sum += exponential<T>(z.at[j] - base);
  }
  __device__ void merge_warp() {
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2)
      merge({__shfl_xor_sync(~0u, max, offset), __shfl_xor_sync(~0u, sum, offset)});
  }
};

// Every thread of the block calls it and gets the whole.
template <class T>
__device__ inline Part<T> merge_block(Part<T> mine) {
  __shared__ Accum<T> max[32], sum[32];
  mine.merge_warp();
  const int lane = threadIdx.x % 32, warps = blockDim.x / 32;
  if (lane == 0) max[threadIdx.x / 32] = mine.max, sum[threadIdx.x / 32] = mine.sum;
  __syncthreads();
  Part<T> all = Part<T>::empty();
  if (lane < warps) all = {max[lane], sum[lane]};
  all.merge_warp();
  __syncthreads();  // before the next call writes
  return all;
}

// Columns col .. col + W of a row, bias added; -inf beyond the last.
template <int W, class In, class Out>
__device__ inline cuda::Vec<Accum<Out>, W> read_logits(const DeviceRows<In, Out>& r, const In* row, int64_t col) {
  cuda::Vec<Accum<Out>, W> z;
  if (col + W <= r.cols) {
    const auto in = cuda::load<W>(row + col);
#pragma unroll
    for (int j = 0; j < W; ++j) z.at[j] = cuda::widen(in.at[j]);
  } else {
#pragma unroll
    for (int j = 0; j < W; ++j) z.at[j] = col + j < r.cols ? cuda::widen(row[col + j]) : minus_infinity<Accum<Out>>();
  }
  if (r.bias) {
#pragma unroll
    for (int j = 0; j < W; ++j)
      if (col + j < r.cols) z.at[j] += cuda::widen(r.bias[col + j]);
  }
  return z;
}

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

template <int W, class In, class Out>
__device__ inline Part<Out> row_part(const DeviceRows<In, Out>& r, int64_t i) {
  const In* row = r.logits + i * r.ld;
  Part<Out> part = Part<Out>::empty();
  for (int64_t col = threadIdx.x * int64_t{W}; col < r.cols; col += blockDim.x * int64_t{W})
    part.add(read_logits<W>(r, row, col));
  return merge_block(part);
}

// z_y where these columns hold the label, else 0.
template <class In, class Out>
__device__ inline Accum<Out> target_logit(const DeviceRows<In, Out>& r, int64_t i, int64_t label) {
  const int64_t y = label - r.first_col;
  return y >= 0 && y < r.cols ? read_logits<1>(r, r.logits + i * r.ld, y).at[0] : Accum<Out>(0);
}

template <int W, class In, class Out>
__device__ inline void zero_gradient(const DeviceRows<In, Out>& r, int64_t i) {
  cuda::Vec<Out, W> zeros{};
  for (int64_t col = threadIdx.x * int64_t{W}; col < r.cols_out; col += blockDim.x * int64_t{W})
    write_gradient<W>(r.dlogits + i * r.ld_out, col, r.cols_out, zeros);
}

// z to k p - g [v = y]; the difference is rounded once.
template <class Out>
struct RowGradient {
  using A = Accum<Out>;
  A offset, logsum, k;
  double g, extra;
  int64_t y;
  template <class In>
  __device__ RowGradient(const DeviceRows<In, Out>& r, int64_t label, double g, A offset, A logsum)
      : offset(offset), logsum(logsum), g(g), y(label - r.first_col) {
    const double lse = static_cast<double>(offset) + static_cast<double>(logsum);
    extra = r.options.z_loss != 0 ? g * 2 * r.options.z_loss * lse : 0;
    k = static_cast<A>(g + extra);
  }
  template <class In>
  __device__ RowGradient(const DeviceRows<In, Out>& r, int64_t i, int64_t label, double d, A offset, A logsum)
      : RowGradient(r, label, row_upstream<A>(r.upstream, r.options.reduction, d, r.first_row + i), offset, logsum) {}
  template <int W>
  __device__ cuda::Vec<Out, W> of(const cuda::Vec<A, W>& z, int64_t col, int64_t cols) const {
    cuda::Vec<A, W> p;
#pragma unroll
    for (int j = 0; j < W; ++j) p.at[j] = exponential<Out>((z.at[j] - offset) - logsum);
    return finish<W>(p, k, col, cols, A(1));
  }
  // p / scale are the probabilities; factor = k * scale.
  template <int W>
  __device__ cuda::Vec<Out, W> finish(const cuda::Vec<A, W>& p, A factor, int64_t col, int64_t cols, A scale) const {
    cuda::Vec<Out, W> out;
#pragma unroll
    for (int j = 0; j < W; ++j) out.at[j] = cuda::narrow<Out>(factor * p.at[j]);
    if (y >= col && y < col + W) {
#pragma unroll
      for (int j = 0; j < W; ++j) {
        const double probability = static_cast<double>(p.at[j] * scale);
        if (col + j == y) out.at[j] = cuda::narrow<Out>(static_cast<A>(g * (probability - 1) + extra * probability));
      }
    }
    if (col + W > cols) {
#pragma unroll
      for (int j = 0; j < W; ++j)
        if (col + j >= cols) out.at[j] = cuda::narrow<Out>(A(0));
    }
    return out;
  }
};

template <int W, class In, class Out>
__device__ inline void write_row_gradient(const DeviceRows<In, Out>& r, int64_t i, const RowGradient<Out>& gradient) {
  const In* row = r.logits + i * r.ld;
  for (int64_t at = 0; at < r.cols_out; at += blockDim.x * int64_t{W}) {
    const int64_t col = at + threadIdx.x * int64_t{W};
    const auto z = read_logits<W>(r, row, col);
    if constexpr (sizeof(Out) < sizeof(In)) __syncthreads();  // this step writes over logits of this and earlier steps
    write_gradient<W>(r.dlogits + i * r.ld_out, col, r.cols_out, gradient.template of<W>(z, col, r.cols));
  }
}

template <class In, class Out>
__device__ inline void zero_input(const DeviceRows<In, Out>& r, int64_t i) {
  if (!r.x) return;
  for (int64_t h = threadIdx.x; h < r.hidden; h += blockDim.x) r.x[i * r.hidden + h] = cuda::narrow<Out>(0);
}

// The loss of a row from its statistics to everything that asks for it, by one thread; a null `row`: an ignored one.
template <class In, class Out>
__device__ inline void store_loss(const DeviceRows<In, Out>& r, int64_t i, const RowLoss* row) {
  using A = Accum<Out>;
  store_row<A>(r.out, r.first_row + i, row);
  if (r.row_loss) r.row_loss[i] = row ? row->loss : 0, r.row_z_loss[i] = row ? row->z_loss : 0;
}

// (max, sum, target) of each row's columns here, joined with what `set` holds unless they are the row's first.
template <int W, class In, class Out>
__global__ void __launch_bounds__(kRowThreads)
    row_statistics(DeviceRows<In, Out> r, DeviceSet<Accum<Out>> set, bool first) {
  const int64_t i = blockIdx.x, label = r.label(i);
  Part<Out> part = Part<Out>::empty();
  const bool valid = is_valid(r.targets, label, r.vocab_global);
  if (valid) part = row_part<W>(r, i);
  if (threadIdx.x != 0) return;
  Accum<Out> target = valid ? target_logit(r, i, label) : Accum<Out>(0);
  if (!first) {
    Part<Out> before{set.max[i], set.sum[i]};
    before.merge(part);
    part = before;
    target += set.target[i];
  }
  set.max[i] = part.max, set.sum[i] = part.sum, set.target[i] = target;
}

// O(rows): losses and residual from statistics of the whole row.
template <class In, class Out>
__global__ void row_losses(DeviceRows<In, Out> r, DeviceSet<const Accum<Out>> set) {
  const int64_t i = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x;
  if (i >= r.rows) return;
  if (!is_valid(r.targets, r.label(i), r.vocab_global)) return store_loss(r, i, nullptr);
  const RowLoss row = row_loss(set.max[i], set.sum[i], set.target[i], r.options.z_loss);
  if (r.offset) r.offset[i] = static_cast<Accum<Out>>(row.offset), r.logsum[i] = static_cast<Accum<Out>>(row.logsum);
  store_loss(r, i, &row);
}

// Gradients from logits and residual.
template <int W, class In, class Out>
__global__ void __launch_bounds__(kRowThreads) row_gradients(DeviceRows<In, Out> r) {
  const int64_t i = blockIdx.x, label = r.label(i);
  const double d = denominator(r.options, r.totals->n_valid);
  if (d == 0) zero_input(r, i);
  if (d == 0 || !is_valid(r.targets, label, r.vocab_global)) return zero_gradient<W>(r, i);
  write_row_gradient<W>(r, i, RowGradient<Out>(r, i, label, d, r.offset[i], r.logsum[i]));
}

// All of a whole row: statistics, loss, gradient.
template <int W, class In, class Out>
__global__ void __launch_bounds__(kRowThreads) row_losses_and_gradients(DeviceRows<In, Out> r) {
  using A = Accum<Out>;
  const int64_t i = blockIdx.x, label = r.label(i);
  const double d = denominator(r.options, r.totals->n_valid);
  const bool valid = is_valid(r.targets, label, r.vocab_global);
  if (d == 0) zero_input(r, i);
  if (!valid) {
    if (threadIdx.x == 0) store_loss(r, i, nullptr);
    return zero_gradient<W>(r, i);
  }
  const Part<Out> part = row_part<W>(r, i);
  const RowLoss row = row_loss(part.max, part.sum, target_logit(r, i, label), r.options.z_loss);
  if (threadIdx.x == 0) store_loss(r, i, &row);
  __syncthreads();  // the label's logit is read before it is written over
  if (d == 0) return zero_gradient<W>(r, i);
  write_row_gradient<W>(r, i, RowGradient<Out>(r, i, label, d, static_cast<A>(row.offset), static_cast<A>(row.logsum)));
}

// f(std::integral_constant<int, W>): the width at which rows of logits and gradients may be read and written.
template <class In, class Out, class F>
void with_row_width(const DeviceRows<In, Out>& r, F&& f) {
  constexpr int64_t kWide = 16 / sizeof(Out);
  const bool wide = cuda::aligned16(r.logits, r.dlogits) && r.ld % kWide == 0 && r.ld_out % kWide == 0;
  cuda::with_width<Out>(wide, f);
}
// Some vectors for each thread, so that short rows do not spend their time in reductions.
inline unsigned row_threads(int64_t cols) {
  return cols >= 32768 ? kRowThreads : 128;
}
inline unsigned row_grid(int64_t rows) {
  XCE_CHECK(rows < (int64_t{1} << 31), "fewer than 2^31 rows", rows);
  return static_cast<unsigned>(rows);
}

template <class In, class Out>
void launch_statistics(const CudaExec& exec, const DeviceRows<In, Out>& r, DeviceSet<Accum<Out>> set, bool first) {
  if (r.rows == 0) return;
  with_row_width(r, [&]<int W>(std::integral_constant<int, W>) {
    row_statistics<W><<<row_grid(r.rows), row_threads(r.cols), 0, exec.stream>>>(r, set, first);
  });
  cuda::check_launch("row statistics");
}
template <class In, class Out>
void launch_losses(const CudaExec& exec, const DeviceRows<In, Out>& r, DeviceSet<const Accum<Out>> set) {
  if (r.rows == 0) return;
  row_losses<<<row_grid(cuda::ceil_div(r.rows, 128)), 128, 0, exec.stream>>>(r, set);
  cuda::check_launch("row losses");
}
template <class In, class Out>
void launch_gradients(const CudaExec& exec, const DeviceRows<In, Out>& r) {
  if (r.rows == 0) return;
  with_row_width(r, [&]<int W>(std::integral_constant<int, W>) {
    row_gradients<W><<<row_grid(r.rows), row_threads(r.cols), 0, exec.stream>>>(r);
  });
  cuda::check_launch("row gradients");
}
template <class In, class Out>
void launch_losses_and_gradients(const CudaExec& exec, const DeviceRows<In, Out>& r) {
  if (r.rows == 0) return;
  with_row_width(r, [&]<int W>(std::integral_constant<int, W>) {
    row_losses_and_gradients<W><<<row_grid(r.rows), row_threads(r.cols), 0, exec.stream>>>(r);
  });
  cuda::check_launch("row losses and gradients");
}

}  // namespace xce::loss

// Rows of logits on a GPU, one block to a row, shared by both losses: what a launch knows of its rows, their logits
// from memory to z, the target's mass. Statistics: row_statistics_cuda.cuh; gradients: row_gradient_cuda.cuh; kernels:
// row_launch_cuda.cuh.
#pragma once

#include "kernels/cross_entropy/loss_rows.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/vec.cuh"

namespace xce::loss {

// At most; the general variant of the loops needs more registers.
template <bool kGeneral>
constexpr int kRowThreads = kGeneral ? 512 : 1024;
inline unsigned row_grid(int64_t rows) {
  XCE_CHECK(rows < (int64_t{1} << 31), "fewer than 2^31 rows", rows);
  return static_cast<unsigned>(rows);
}

// Whether kernels that use clusters run as such here: they are compiled for Hopper alone, and only where the build asks
// for it. Other GPUs run what was compiled for compute capability 8.0, which knows none.
inline bool has_clusters(const CudaExec& exec) {
  constexpr int kCompiledFor[] = {__CUDA_ARCH_LIST__};
  bool hopper = false;
  for (int architecture : kCompiledFor) hopper = hopper || architecture / 100 == 9;
  return hopper && exec.cc_major == 9;
}

// What one launch knows of its rows; row i of it is row first_row + i of the call.
template <class In, class Out>
struct DeviceRows {
  using A = Accum<Out>;
  const In* logits;  // rows ld apart
  const Out* bias;   // of the first column here, or null; of logits in accum_dtype only
  Out* dlogits;      // rows ld_out apart
  int64_t ld, ld_out;
  int64_t rows, cols;
  int64_t cols_out;           // >= cols: columns of dlogits, the last ones 0
  int64_t first_row;          // of the call
  int64_t first_col;          // global label of the first column here
  int64_t first_probability;  // column of the targets' probabilities that is the first here
  int64_t vocab_global;
  LossTargets targets;  // ld_probabilities set
  LossOptions options;
  LossUpstream upstream;
  LossOutputs out;
  Extras extras;
  Totals* totals;
  double *row_loss, *row_z_loss;  // summed by launch_sums
  A *offset, *logsum;             // the residual, by chunk row: launch_losses writes it, launch_gradients reads it
  double* mass;  // likewise S, of probabilities alone; null where it is targets.probability_mass or where the columns
                 // here are all
  const float* gradient_scale;  // () fp16 gradients are divided by it before they are rounded; null: 1
  Out* x;                       // packed inputs that a zero denominator makes zero, or null
  int64_t hidden;

  __device__ RowTarget target(int64_t i) const { return row_target<A>(targets, options, vocab_global, first_row + i); }
};

// Whether the calls' rows need more than (max, sum): the second variant of the row loops.
template <class In, class Out>
bool is_general(const DeviceRows<In, Out>& r) {
  return r.options.softcap != 0 || r.extras.any();
}

// What the kernels of one block know of a whole call.
struct DeviceCall {
  LossTargets targets;
  LossOptions options;
  LossUpstream upstream;
  LossOutputs out;
  DType dtype;
  int64_t rows, vocab_global;
  Totals* totals;
  // () out, or null: a power of two, 2^-10 of the largest gradient of any logit. Gradients divided by it use fp16's
  // range; as cuBLASLt's alpha it gives products of them their size again.
  float* gradient_scale = nullptr;
};
// totals = the counts of all rows, sums 0; the gradients' scale.
void launch_counts(const CudaExec& exec, const DeviceCall& call);

struct RowSums {
  const double *loss, *z_loss;  // (rows), to be added to the totals
  int64_t rows;
  bool last = true;    // the reduced results are stored
  bool count = false;  // instead of launch_counts, where no row needed the counts
};
void launch_sums(const CudaExec& exec, const DeviceCall& call, const RowSums& sums);

template <class A>
__device__ inline A minus_infinity() {
  return -static_cast<A>(INFINITY);
}
template <class A>
__device__ inline A larger(A a, A b) {  // NaN loses
  if constexpr (std::is_same_v<A, float>)
    return fmaxf(a, b);
  else
    return fmax(a, b);
}

// exp(z - base) with one multiplication-addition and one ex2 in fp32: 2^(z log2(e) - centre). The rounding of
// centre = base log2(e) is a factor common to all z, which `repair` takes out again.
template <class A>
struct Exponential;
template <>
struct Exponential<float> {
  static constexpr float kLog2e = 1.4426950408889634f;
  float centre, repair_log2;
  __device__ explicit Exponential(float base) : centre(base * kLog2e), repair_log2(-fmaf(base, kLog2e, -centre)) {}
  __device__ explicit Exponential(double base) {
    const double exact = base * static_cast<double>(kLog2e);
    centre = static_cast<float>(exact);
    repair_log2 = static_cast<float>(static_cast<double>(centre) - exact);
  }
  __device__ float operator()(float z) const { return cuda::exp2_approx(fmaf(z, kLog2e, -centre)); }
  __device__ float repair() const { return cuda::exp2_approx(repair_log2); }
};
template <>
struct Exponential<double> {
  double base;
  __device__ explicit Exponential(double base) : base(base) {}
  __device__ double operator()(double z) const { return exp(z - base); }
  __device__ double repair() const { return 1; }
};

// z = cap tanh(x / cap) and its slope 1 - (z / cap)^2, both to a few units in the last place also where tanh
// saturates: from e = exp(-2 |x / cap|), by a polynomial where 1 - e would cancel.
template <class A>
struct Capped {
  A z, slope;
};
__device__ inline Capped<float> capped(float x, float cap, float inverse_cap) {
  const float u = x * inverse_cap, t = u * u;
  const float e = cuda::exp2_approx(-2 * Exponential<float>::kLog2e * fabsf(u));
  const float r = __frcp_rn(1 + e);
  float tanh = copysignf(fmaf(-2 * e, r, 1.0f), u);
  if (t < 0.3f) {  // least squares of tanh(u) / u
    float p = fmaf(t, -0.0061971648f, 0.02101913f);
    p = fmaf(t, p, -0.053840052f);
    p = fmaf(t, p, 0.13332474f);
    p = fmaf(t, p, -0.33333313f);
    tanh = fmaf(p * t, u, u);
  }
  return {isnan(x) ? x : cap * tanh, 4 * e * r * r};
}
__device__ inline Capped<double> capped(double x, double cap, double inverse_cap) {
  const double t = tanh(x * inverse_cap), e = exp(-2 * fabs(x * inverse_cap)), r = 1 / (1 + e);
  return {cap * t, 4 * e * r * r};
}

// Logits to z: bias, scale and, in the general variant, the softcap.
template <class A>
struct LogitMap {
  A scale, cap, inverse_cap;
  bool scaled;
  __device__ explicit LogitMap(const LossOptions& options)
      : scale(static_cast<A>(options.logit_scale)),
        cap(static_cast<A>(options.softcap)),
        inverse_cap(static_cast<A>(options.softcap != 0 ? 1 / options.softcap : 0)),
        scaled(options.logit_scale != 1) {}
  // Before the softcap.
  template <int W, class In, class Out>
  __device__ cuda::Vec<A, W> operator()(const DeviceRows<In, Out>& r, const cuda::Vec<In, W>& logits, int col) const {
    cuda::Vec<A, W> y;
#pragma unroll
    for (int j = 0; j < W; ++j) y.at[j] = cuda::widen(logits.at[j]);
    if constexpr (std::is_same_v<In, A>) {
      if (r.bias)
#pragma unroll
        for (int j = 0; j < W; ++j) y.at[j] += cuda::widen(r.bias[col + j]);
    }
    if (scaled)
#pragma unroll
      for (int j = 0; j < W; ++j) y.at[j] *= scale;
    return y;
  }
  __device__ Capped<A> cap_of(A y) const {
    return cap != 0 ? capped(y, cap, inverse_cap) : Capped<A>{y, A(1)};
  }
};
template <class In, class Out>
__device__ inline Capped<Accum<Out>> z_at(const DeviceRows<In, Out>& r, const LogitMap<Accum<Out>>& map, const In* row,
                                          int col) {
  const cuda::Vec<In, 1> logit{row[col]};
  return map.cap_of(map(r, logit, col).at[0]);
}

// The threads that share a row: a block's, or those of a cluster of blocks.
struct RowThreads {
  int thread, threads;
};
__device__ inline RowThreads of_block() {
  return {static_cast<int>(threadIdx.x), static_cast<int>(blockDim.x)};
}

// How they share it out: vectors of W columns, [head, tail), each 16 bytes aligned; the few columns before and after by
// one thread each.
template <int W>
struct RowSpan {
  RowThreads by;
  int head, tail, edge;  // edge: this thread's single column, or -1
  template <class In, class Out>
  __device__ RowSpan(const DeviceRows<In, Out>& r, int64_t i, RowThreads by) : by(by), head(0) {
    const int cols = static_cast<int>(r.cols);
    if constexpr (W * sizeof(In) == 16) {
      const auto address = reinterpret_cast<uintptr_t>(r.logits + i * r.ld);
      head = min(cols, static_cast<int>((16 - address % 16) % 16 / sizeof(In)));
    }
    tail = head + (cols - head) / W * W;
    edge = by.thread < head ? by.thread : tail + (by.thread - head);
    if (edge >= cols) edge = -1;
  }
  __device__ int stride() const { return by.threads * W; }
  // Columns of a batch of U vectors per thread.
  template <int U>
  __device__ int batch() const {
    return U * stride();
  }
  // This thread's first column of the batch that begins at column `at`.
  __device__ int first(int at) const { return at + by.thread * W; }
  // Whether this thread's vectors or its edge hold column y.
  __device__ bool owns(int y) const {
    if (y < 0) return false;
    if (y < head || y >= tail) return y == edge;
    return (y - head) / W % by.threads == by.thread;
  }
};

// W neighbouring logits as they lie in memory.
template <class In, int W>
struct Raw {
  static constexpr int kPart = W == 1 ? 1 : 16 / sizeof(In), kParts = W / kPart;
  cuda::Packed<In, kPart> part[kParts];

  __device__ void load(const In* at) {
#pragma unroll
    for (int k = 0; k < kParts; ++k) part[k] = cuda::load_packed<kPart>(at + k * kPart);
  }
  __device__ cuda::Vec<In, W> values() {
    cuda::Vec<In, W> all;
#pragma unroll
    for (int k = 0; k < kParts; ++k) {
      const auto some = cuda::unpack(part[k]);
#pragma unroll
      for (int j = 0; j < kPart; ++j) all.at[k * kPart + j] = some.at[j];
    }
    return all;
  }
};
// Vectors of a batch: `kBytes` of loads in flight in each thread.
template <class In, int W, int kBytes>
constexpr int kBatch = kBytes / 16 / Raw<In, W>::kParts;

// This thread's part of a batch: vectors from column `first` on, those beyond the row's stay as they are.
template <int U, int W, class In>
__device__ inline void load_batch(Raw<In, W> (&raw)[U], const In* row, const RowSpan<W>& span, int first) {
#pragma unroll
  for (int u = 0; u < U; ++u)
    if (first + u * span.stride() < span.tail) raw[u].load(row + first + u * span.stride());
}

// The mass a_v of every column, without what the label has more: w_v (keep t_v + each).
template <class A>
struct ColumnMass {
  A keep, each;
  const A* weights;           // of the first column here, or null
  const void* probabilities;  // of this row's first column here, or null
  DType type;
  bool any;

  template <class In, class Out>
  __device__ ColumnMass(const DeviceRows<In, Out>& r, int64_t i)
      : keep(static_cast<A>(1 - r.options.label_smoothing)),
        each(static_cast<A>(r.options.label_smoothing / static_cast<double>(r.vocab_global))),
        weights(r.options.class_weights ? static_cast<const A*>(r.options.class_weights) + r.first_col : nullptr),
        probabilities(nullptr),
        type(r.targets.probability_type) {
    if (r.targets.probabilities) {
      const int64_t at = (r.first_row + i) * r.targets.ld_probabilities + r.first_probability;
      const int64_t bytes = type == DType::kF64 ? 8 : type == DType::kF32 ? 4 : 2;
      probabilities = static_cast<const char*>(r.targets.probabilities) + at * bytes;
    }
    any = probabilities || each != 0;
  }
  template <int W>
  __device__ cuda::Vec<A, W> of(int col) const {
    cuda::Vec<A, W> a;
#pragma unroll
    for (int j = 0; j < W; ++j) a.at[j] = each;
    if (probabilities) switch (type) {
        case DType::kF32:
          add<W, float>(a, col);
          break;
        case DType::kBf16:
          add<W, Bf16>(a, col);
          break;
        case DType::kF16:
          add<W, F16>(a, col);
          break;
        case DType::kF64:
          add<W, double>(a, col);
          break;
      }
    if (weights)
#pragma unroll
      for (int j = 0; j < W; ++j) a.at[j] *= weights[col + j];
    return a;
  }

 private:
  template <int W, class P>
  __device__ void add(cuda::Vec<A, W>& a, int col) const {
    const P* t = static_cast<const P*>(probabilities) + col;
#pragma unroll
    for (int j = 0; j < W; ++j) a.at[j] += keep * static_cast<A>(cuda::widen(t[j]));
  }
};

// S of row i, of `cols` columns; all threads call it.
template <class In, class Out>
__device__ inline double column_mass(const DeviceRows<In, Out>& r, int64_t i, int64_t cols) {
  const ColumnMass<Accum<Out>> mass(r, i);
  double sum = 0;
  for (int64_t col = threadIdx.x; col < cols; col += blockDim.x)
    sum += static_cast<double>(mass.template of<1>(static_cast<int>(col)).at[0]);
  return cuda::block_sum(sum);
}

}  // namespace xce::loss

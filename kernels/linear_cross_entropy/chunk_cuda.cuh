// One chunk of rows of the fused loss on a GPU: products by cuBLASLt, logits in accum_dtype, whose gradients overwrite
// them in dtype (each row's first half when that is narrower). Ignored rows stay in place, their inputs copied as zeros
// so that nothing in them, not even NaN, reaches a product. What the host cannot know (valid rows, the denominator)
// stays on the device.
#pragma once

#include <algorithm>

#include "kernels/cross_entropy/rows_cuda.cuh"
#include "kernels/cuda/fill.cuh"
#include "kernels/cuda/gemm.cuh"
#include "kernels/linear_cross_entropy/linear_cross_entropy.h"
#include "kernels/linear_cross_entropy/plan_cuda.h"
#include "kernels/linear_cross_entropy/row_cluster_cuda.cuh"

namespace xce::loss {

template <int W, class T>
__global__ void __launch_bounds__(cuda::kThreads)
    copy_valid_rows(DeviceRows<Accum<T>, T> r, const T* x, int64_t ldx, T* to) {
  const int64_t i = blockIdx.x;
  const bool valid = is_valid(r.targets, r.label(i), r.vocab_global);
  const T* from = x + (r.first_row + i) * ldx;
  for (int64_t h = threadIdx.x * int64_t{W}; h < r.hidden; h += blockDim.x * int64_t{W})
    cuda::store<W>(to + i * r.hidden + h, valid ? cuda::load<W>(from + h) : cuda::Vec<T, W>{});
}

// dx of the rows from their sum over tiles, or with a null `sum` only the zeros of ignored rows, which products with
// weights that are not finite leave as NaN.
template <class T, class D>
__global__ void __launch_bounds__(cuda::kThreads)
    finish_dx(DeviceRows<Accum<T>, T> r, const Accum<T>* sum, D* dx, bool add) {
  const int64_t i = blockIdx.x;
  const bool valid = is_valid(r.targets, r.label(i), r.vocab_global);
  if (valid ? !sum : add) return;
  for (int64_t h = threadIdx.x; h < r.hidden; h += blockDim.x) {
    D* to = dx + i * r.hidden + h;
    Accum<T> value = valid ? sum[i * r.hidden + h] : Accum<T>(0);
    if (add) value += cuda::widen(*to);
    *to = cuda::narrow<D>(value);
  }
}

constexpr int kColumnThreads = 64, kRowGroups = 8;

template <class T>
__global__ void __launch_bounds__(kColumnThreads* kRowGroups)
    column_sums(DeviceRows<Accum<T>, T> r, Accum<T>* dbias, bool add) {
  __shared__ Accum<T> groups[kRowGroups][kColumnThreads];
  const int64_t col = blockIdx.x * int64_t{kColumnThreads} + threadIdx.x;
  Accum<T> sum = 0;
  if (col < r.cols)
    for (int64_t i = threadIdx.y; i < r.rows; i += kRowGroups) sum += cuda::widen(r.dlogits[i * r.ld_out + col]);
  groups[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || col >= r.cols) return;
  for (int group = 1; group < kRowGroups; ++group) sum += groups[group][threadIdx.x];
  dbias[col] = add ? dbias[col] + sum : sum;
}

template <class T>
class CudaChunk {
 public:
  using A = Accum<T>;
  using Set = DeviceSet<A>;
  using ConstSet = DeviceSet<const A>;

  CudaChunk(const CudaExec& exec, const LinearCrossEntropyForwardBackward& call, const CudaLossPlan& plan)
      : exec_(exec), call_(call), in_(call.in), plan_(plan), base_(static_cast<char*>(call.workspace.data)) {
    rows_.vocab_global = in_.vocab_global < 0 ? in_.shard_offset + in_.vocab : in_.vocab_global;
    active_ = std::clamp<int64_t>(rows_.vocab_global - in_.shard_offset, 0, in_.vocab);
    tiles_ = cuda::ceil_div(active_, plan.tile_cols);
    x_ = reinterpret_cast<T*>(base_ + plan.x);
    A* values = array(plan.row_values);
    const int64_t n = plan.chunk_rows;
    own_statistics_ = {values, values + n, values + 2 * n};
    rows_.logits = array(0);
    rows_.dlogits = reinterpret_cast<T*>(base_);
    rows_.ld = plan.ld;
    rows_.ld_out = plan.ld * static_cast<int64_t>(sizeof(A) / sizeof(T));
    rows_.targets = in_.targets;
    rows_.options = call.options;
    rows_.upstream = call.upstream;
    rows_.out = call.out;
    rows_.totals = reinterpret_cast<Totals*>(base_ + plan.header);
    rows_.row_loss = reinterpret_cast<double*>(base_ + plan.row_sums);
    rows_.row_z_loss = rows_.row_loss + n;
    rows_.offset = values + 3 * n;
    rows_.logsum = values + 4 * n;
    rows_.x = x_;
    rows_.hidden = in_.hidden;
  }

  Set own_statistics() const { return own_statistics_; }
  int64_t first_row() const { return rows_.first_row; }
  int64_t rows() const { return rows_.rows; }

  // Before chunk 0: the whole call's counts, which the mean's denominator needs.
  void count() { count_on_device(exec_, in_.targets, in_.rows, rows_.vocab_global, rows_.totals); }

  void select(int64_t chunk) {
    chunk_ = chunk;
    rows_.first_row = chunk * plan_.chunk_rows;
    rows_.rows = std::min(plan_.chunk_rows, in_.rows - rows_.first_row);
  }

  void load_rows() {
    if (rows_.rows == 0) return;
    const T* x = static_cast<const T*>(in_.x);
    const int64_t ldx = in_.ldx ? in_.ldx : in_.hidden, bytes = sizeof(T);
    const bool wide = cuda::aligned16(x) && ldx * bytes % 16 == 0 && in_.hidden * bytes % 16 == 0;
    cuda::with_width<T>(wide, [&]<int W>(std::integral_constant<int, W>) {
      const unsigned threads = cuda::threads_for(cuda::ceil_div(in_.hidden, W));
      copy_valid_rows<W><<<row_grid(rows_.rows), threads, 0, exec_.stream>>>(rows_, x, ldx, x_);
    });
    cuda::check_launch("copy of valid rows");
  }

  void statistics(Set set) {
    for (int64_t t = 0; t < std::max<int64_t>(tiles_, 1); ++t) {  // no column at all: empty sets
      select_tile(t);
      logits();
      launch_statistics(exec_, rows_, set, t == 0);
    }
  }

  // Loss and residual of the chunk's rows; after the last chunk the reduced results.
  void losses(ConstSet set) {
    launch_losses(exec_, rows_, set);
    sum();
  }

  // Statistics, losses and gradients by one kernel per row; false, and nothing done, where a row has several tiles.
  bool losses_and_gradients() {
    if (plan_.tiles != 1) return false;
    begin_gradients();
    select_tile(0);
    logits();
    if (!launch_in_cluster(exec_, rows_)) launch_losses_and_gradients(exec_, rows_);
    sum();
    products();
    end_gradients();
    return true;
  }

  // Instead of losses(): the residual of an earlier forward.
  void use_residual(const A* offset, const A* logsum) {
    rows_.offset = const_cast<A*>(offset) + rows_.first_row;  // gradients only read them
    rows_.logsum = const_cast<A*>(logsum) + rows_.first_row;
  }

  void gradients() { gradients_from(Logits::kNone); }
  void gradients_after_statistics() { gradients_from(plan_.tiles == 1 ? Logits::kThere : Logits::kNone); }

 private:
  enum class Logits { kNone, kThere };

  void gradients_from(Logits have) {
    if (!call_.grad.dx && !call_.grad.dweight && !call_.grad.dbias) return;
    begin_gradients();
    for (int64_t t = 0; t < tiles_; ++t) {
      select_tile(t);
      if (have == Logits::kNone) logits();
      launch_gradients(exec_, rows_);
      products();
    }
    end_gradients();
  }

  A* array(size_t at) const { return reinterpret_cast<A*>(base_ + at); }
  bool sums_dx() const { return plan_.tiles > 1 && sizeof(T) < sizeof(A) && !call_.grad.dx_in_accum_dtype; }
  void* dx() const {
    size_t size = call_.grad.dx_in_accum_dtype ? sizeof(A) : sizeof(T);
    return static_cast<char*>(call_.grad.dx) + static_cast<size_t>(rows_.first_row * in_.hidden) * size;
  }
  int64_t ldw() const { return in_.ldw ? in_.ldw : in_.hidden; }
  const T* weight() const { return static_cast<const T*>(in_.weight) + tile_first_ * ldw(); }

  void select_tile(int64_t t) {
    tile_first_ = t * plan_.tile_cols;
    rows_.cols = rows_.cols_out = std::min(plan_.tile_cols, active_ - tile_first_);
    rows_.first_col = in_.shard_offset + tile_first_;
    rows_.bias = in_.bias ? static_cast<const T*>(in_.bias) + tile_first_ : nullptr;
  }

  void logits() {
    if (rows_.rows == 0 || rows_.cols == 0) return;
    cuda::Gemm g{};
    g.a = x_;
    g.b = weight();
    g.c = base_;
    g.lda = in_.hidden;
    g.ldb = ldw();
    g.ldc = rows_.ld;
    g.m = rows_.rows;
    g.n = rows_.cols;
    g.k = in_.hidden;
    g.trans_a = false;
    g.trans_b = true;
    g.in = in_.dtype;
    g.out = accum_dtype(in_.dtype);
    cuda::gemm(exec_, g);
  }

  void sum() {
    sum_losses(exec_, in_.dtype, rows_.row_loss, rows_.row_z_loss, rows_.rows, rows_.totals, chunk_ + 1 == plan_.chunks,
               call_.options, call_.out);
  }

  // What no product writes: the gradients of padding, or of all columns when there is no row.
  void begin_gradients() {
    const LinearCrossEntropyGradients& grad = call_.grad;
    if (chunk_ > 0 || grad.accumulate_dweight) return;
    const int64_t from = rows_.rows == 0 ? 0 : active_, count = in_.vocab - from;
    if (grad.dweight) cuda::fill(exec_, static_cast<A*>(grad.dweight) + from * in_.hidden, count * in_.hidden, 0);
    if (grad.dbias) cuda::fill(exec_, static_cast<A*>(grad.dbias) + from, count, 0);
  }

  // Of the selected tile, from its gradients.
  void products() {
    if (rows_.rows == 0 || rows_.cols == 0) return;
    const LinearCrossEntropyGradients& grad = call_.grad;
    const bool add = chunk_ > 0 || grad.accumulate_dweight;
    if (grad.dbias) {
      column_sums<T>
          <<<row_grid(cuda::ceil_div(rows_.cols, kColumnThreads)), dim3(kColumnThreads, kRowGroups), 0, exec_.stream>>>(
              rows_, static_cast<A*>(grad.dbias) + tile_first_, add);
      cuda::check_launch("dbias");
    }
    if (grad.dweight) weight_product(static_cast<A*>(grad.dweight) + tile_first_ * in_.hidden, add);
    if (!grad.dx) return;
    const bool later = tile_first_ > 0;
    if (sums_dx())
      input_product(array(plan_.dx), accum_dtype(in_.dtype), later);
    else
      input_product(dx(), grad.dx_in_accum_dtype ? accum_dtype(in_.dtype) : in_.dtype, later || grad.accumulate_dx);
  }

  void weight_product(A* dweight, bool add) {
    cuda::Gemm g{};
    g.a = rows_.dlogits;
    g.b = x_;
    g.c = dweight;
    g.lda = rows_.ld_out;
    g.ldb = in_.hidden;
    g.ldc = in_.hidden;
    g.m = rows_.cols;
    g.n = in_.hidden;
    g.k = rows_.rows;
    g.trans_a = true;
    g.trans_b = false;
    g.in = in_.dtype;
    g.out = accum_dtype(in_.dtype);
    g.addend = add ? dweight : nullptr;
    cuda::gemm(exec_, g);
  }
  void input_product(void* to, DType out, bool add) {
    cuda::Gemm g{};
    g.a = rows_.dlogits;
    g.b = weight();
    g.c = to;
    g.lda = rows_.ld_out;
    g.ldb = ldw();
    g.ldc = in_.hidden;
    g.m = rows_.rows;
    g.n = in_.hidden;
    g.k = rows_.cols;
    g.trans_a = false;
    g.trans_b = false;
    g.in = in_.dtype;
    g.out = out;
    g.addend = add ? to : nullptr;
    cuda::gemm(exec_, g);
  }

  void end_gradients() {
    if (!call_.grad.dx || rows_.rows == 0) return;
    if (call_.grad.dx_in_accum_dtype)
      finish_dx_as(static_cast<A*>(dx()));
    else
      finish_dx_as(static_cast<T*>(dx()));
  }
  template <class D>
  void finish_dx_as(D* dx) {
    const bool add = call_.grad.accumulate_dx;
    if (tiles_ == 0) {
      if (!add) cuda::fill(exec_, dx, rows_.rows * in_.hidden, 0);
      return;
    }
    const A* sum = sums_dx() ? array(plan_.dx) : nullptr;
    if (!sum && add) return;
    finish_dx<T><<<row_grid(rows_.rows), cuda::kThreads, 0, exec_.stream>>>(rows_, sum, dx, add);
    cuda::check_launch("dx");
  }

  CudaExec exec_;
  const LinearCrossEntropyForwardBackward& call_;
  const LinearCrossEntropyInputs& in_;
  CudaLossPlan plan_;
  char* base_;
  DeviceRows<A, T> rows_{};  // of the selected chunk and tile
  DeviceSet<A> own_statistics_;
  T* x_;
  int64_t active_, tiles_;  // active_: columns that are not padding
  int64_t chunk_ = 0, tile_first_ = 0;
};

}  // namespace xce::loss

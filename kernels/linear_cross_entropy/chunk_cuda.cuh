// One chunk of rows of the fused loss on a GPU: products by cuBLASLt, logits in accum_dtype, whose gradients overwrite
// them in dtype (each row's first half when that is narrower). Ignored rows stay in place, their inputs copied as zeros
// so that nothing in them, not even NaN, reaches a product. What the host cannot know (valid rows, the denominator)
// stays on the device. Gradients of fp16 are divided by a power of two that the device finds, so that they use fp16's
// range; every sum of them is multiplied by it again before it is rounded.
#pragma once

#include <algorithm>

#include "kernels/cross_entropy/row_launch_cuda.cuh"
#include "kernels/cuda/gemm.h"
#include "kernels/linear_cross_entropy/chunk_rows_cuda.cuh"
#include "kernels/linear_cross_entropy/linear_cross_entropy.h"
#include "kernels/linear_cross_entropy/plan_cuda.h"
#include "kernels/linear_cross_entropy/row_cluster_cuda.cuh"

namespace xce::loss {

template <class T>
class CudaChunk {
 public:
  using A = Accum<T>;
  using Call = LinearCrossEntropyForwardBackward;

  CudaChunk(const CudaExec& exec, const Call& call, const CudaLossPlan& plan, Extras extras)
      : exec_(exec), call_(call), in_(call.in), plan_(plan), base_(static_cast<char*>(call.workspace.data)) {
    rows_.vocab_global = in_.vocab_global < 0 ? in_.shard_offset + in_.vocab : in_.vocab_global;
    active_ = std::clamp<int64_t>(rows_.vocab_global - in_.shard_offset, 0, in_.vocab);
    tiles_ = cuda::ceil_div(active_, plan.tile_cols);
    x_ = reinterpret_cast<T*>(base_ + plan.x);
    const int64_t n = plan.chunk_rows;
    rows_.logits = array<A>(0);
    rows_.dlogits = array<T>(0);
    rows_.ld = plan.ld;
    rows_.ld_out = plan.ld * static_cast<int64_t>(sizeof(A) / sizeof(T));
    rows_.targets = in_.targets;
    if (rows_.targets.ld_probabilities == 0) rows_.targets.ld_probabilities = in_.vocab;
    rows_.options = call.options;
    rows_.upstream = call.upstream;
    rows_.out = call.out;
    rows_.extras = extras;
    rows_.totals = array<Totals>(plan.header);
    rows_.row_loss = array<double>(plan.row_sums);
    rows_.row_z_loss = rows_.row_loss + n;
    const bool own_mass = in_.targets.probabilities && !in_.targets.probability_mass;
    rows_.mass = own_mass ? rows_.row_loss + 2 * n : nullptr;
    rows_.offset = array<A>(plan.row_values);
    rows_.logsum = rows_.offset + n;
    if constexpr (std::is_same_v<T, F16>) rows_.gradient_scale = array<float>(plan.scale);
    rows_.x = x_;
    rows_.hidden = in_.hidden;
  }

  StatisticsView own_statistics() const { return {array<double>(plan_.statistics), plan_.chunk_rows, 0}; }
  int64_t first_row() const { return rows_.first_row; }
  int64_t rows() const { return rows_.rows; }

  // Before chunk 0: the whole call's counts, which the mean's denominator needs.
  void count() { launch_counts(exec_, device_call()); }

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

  void statistics(StatisticsView set) {
    for (int64_t t = 0; t < std::max<int64_t>(tiles_, 1); ++t) {  // no column at all: empty sets
      select_tile(t);
      logits();
      launch_statistics(exec_, rows_, set, t == 0 ? Statistics::kFirst : Statistics::kMore);
    }
  }

  // Loss and residual of the chunk's rows; after the last chunk the reduced results.
  void losses(StatisticsView set) {
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
  void use_residual(const void* offset, const void* logsum) {
    rows_.offset = const_cast<A*>(static_cast<const A*>(offset)) + rows_.first_row;  // gradients only read them
    rows_.logsum = const_cast<A*>(static_cast<const A*>(logsum)) + rows_.first_row;
    if (!rows_.mass) return;
    select_columns(0, active_);
    launch_masses(exec_, rows_, active_);
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

  template <class V>
  V* array(size_t at) const {
    return reinterpret_cast<V*>(base_ + at);
  }
  DeviceCall device_call() const {
    return {.targets = rows_.targets,
            .options = rows_.options,
            .upstream = rows_.upstream,
            .out = rows_.out,
            .dtype = in_.dtype,
            .rows = in_.rows,
            .vocab_global = rows_.vocab_global,
            .totals = rows_.totals,
            .gradient_scale = std::is_same_v<T, F16> ? array<float>(plan_.scale) : nullptr};
  }
  bool sums_dx() const { return plan_.tiles > 1 && sizeof(T) < sizeof(A) && !call_.grad.dx_in_accum_dtype; }
  int64_t ldw() const { return in_.ldw ? in_.ldw : in_.hidden; }
  int64_t ld_dx() const { return call_.grad.ld_dx ? call_.grad.ld_dx : in_.hidden; }
  int64_t ld_dweight() const { return call_.grad.ld_dweight ? call_.grad.ld_dweight : in_.hidden; }
  DType dx_dtype() const { return call_.grad.dx_in_accum_dtype ? accum_dtype(in_.dtype) : in_.dtype; }
  DType dweight_dtype() const { return call_.grad.dweight_in_dtype ? in_.dtype : accum_dtype(in_.dtype); }
  void* dx() const {
    return static_cast<char*>(call_.grad.dx) + static_cast<size_t>(rows_.first_row * ld_dx()) * size_of(dx_dtype());
  }
  const T* weight() const { return static_cast<const T*>(in_.weight) + tile_first_ * ldw(); }
  // f(std::type_identity<D>{}) with the type of dweight and dbias, or of dx.
  template <class F>
  static void visit_gradient(bool in_dtype, F&& f) {
    if (in_dtype)
      f(std::type_identity<T>{});
    else
      f(std::type_identity<A>{});
  }

  void select_columns(int64_t first, int64_t count) {
    tile_first_ = first;
    rows_.cols = rows_.cols_out = count;
    rows_.first_col = in_.shard_offset + first;
    rows_.first_probability = first;
    rows_.bias = in_.bias ? static_cast<const T*>(in_.bias) + first : nullptr;
  }
  void select_tile(int64_t t) {
    const int64_t first = t * plan_.tile_cols;
    select_columns(first, std::min(plan_.tile_cols, active_ - first));
  }

  void logits() {
    if (rows_.rows == 0 || rows_.cols == 0) return;
    cuda::Gemm g{};
    g.a = x_, g.lda = in_.hidden;
    g.b = weight(), g.ldb = ldw(), g.trans_b = true;
    g.c = base_, g.ldc = rows_.ld, g.out = accum_dtype(in_.dtype);
    g.m = rows_.rows, g.n = rows_.cols, g.k = in_.hidden;
    product(g);
  }
  void product(cuda::Gemm& g) {
    g.in = in_.dtype;
    g.allow_tf32 = in_.allow_tf32;
    cuda::gemm(exec_, g);
  }

  void sum() {
    launch_sums(
        exec_, device_call(),
        {.loss = rows_.row_loss, .z_loss = rows_.row_z_loss, .rows = rows_.rows, .last = chunk_ + 1 == plan_.chunks});
  }

  // What no product writes: the gradients of padding, or of all columns when there is no row.
  void begin_gradients() {
    const LinearCrossEntropyGradients& grad = call_.grad;
    if (chunk_ > 0 || grad.accumulate_dweight) return;
    const int64_t from = rows_.rows == 0 ? 0 : active_, count = in_.vocab - from;
    visit_gradient(grad.dweight_in_dtype, [&]<class D>(std::type_identity<D>) {
      if (grad.dweight)
        zero_rows(exec_, static_cast<D*>(grad.dweight) + from * ld_dweight(), count, in_.hidden, ld_dweight());
      if (grad.dbias) cuda::fill(exec_, static_cast<D*>(grad.dbias) + from, count, 0);
    });
  }

  // Of the selected tile, from its gradients.
  void products() {
    if (rows_.rows == 0 || rows_.cols == 0) return;
    const LinearCrossEntropyGradients& grad = call_.grad;
    const bool add = chunk_ > 0 || grad.accumulate_dweight;
    if (grad.dbias) {
      visit_gradient(grad.dweight_in_dtype, [&]<class D>(std::type_identity<D>) {
        column_sums<T><<<row_grid(cuda::ceil_div(rows_.cols, kColumnThreads)), dim3(kColumnThreads, kRowGroups), 0,
                         exec_.stream>>>(rows_, static_cast<D*>(grad.dbias) + tile_first_, add);
      });
      cuda::check_launch("dbias");
    }
    if (grad.dweight) weight_product(add);
    if (!grad.dx) return;
    const bool later = tile_first_ > 0;
    if (sums_dx())
      input_product(array<A>(plan_.dx), in_.hidden, accum_dtype(in_.dtype), later);
    else
      input_product(dx(), ld_dx(), dx_dtype(), later || grad.accumulate_dx);
  }

  void weight_product(bool add) {
    const auto at = static_cast<size_t>(tile_first_ * ld_dweight()) * size_of(dweight_dtype());
    cuda::Gemm g{};
    g.a = rows_.dlogits, g.lda = rows_.ld_out, g.trans_a = true;
    g.b = x_, g.ldb = in_.hidden;
    g.c = static_cast<char*>(call_.grad.dweight) + at, g.ldc = ld_dweight(), g.out = dweight_dtype();
    g.m = rows_.cols, g.n = in_.hidden, g.k = rows_.rows;
    g.addend = add ? g.c : nullptr;
    g.alpha = rows_.gradient_scale;
    product(g);
  }
  void input_product(void* to, int64_t ld, DType out, bool add) {
    cuda::Gemm g{};
    g.a = rows_.dlogits, g.lda = rows_.ld_out;
    g.b = weight(), g.ldb = ldw();
    g.c = to, g.ldc = ld, g.out = out;
    g.m = rows_.rows, g.n = in_.hidden, g.k = rows_.cols;
    g.addend = add ? to : nullptr;
    g.alpha = rows_.gradient_scale;
    product(g);
  }

  void end_gradients() {
    if (!call_.grad.dx || rows_.rows == 0) return;
    visit_gradient(!call_.grad.dx_in_accum_dtype,
                   [&]<class D>(std::type_identity<D>) { finish_dx_as(static_cast<D*>(dx())); });
  }
  template <class D>
  void finish_dx_as(D* dx) {
    const bool add = call_.grad.accumulate_dx;
    if (tiles_ == 0) {
      if (!add) zero_rows(exec_, dx, rows_.rows, in_.hidden, ld_dx());
      return;
    }
    const A* sum = sums_dx() ? array<A>(plan_.dx) : nullptr;
    if (!sum && add) return;
    finish_dx<T><<<row_grid(rows_.rows), cuda::kThreads, 0, exec_.stream>>>(rows_, sum, dx, ld_dx(), add);
    cuda::check_launch("dx");
  }

  CudaExec exec_;
  const Call& call_;
  const LinearCrossEntropyInputs& in_;
  CudaLossPlan plan_;
  char* base_;
  DeviceRows<A, T> rows_{};  // of the selected chunk and tile
  T* x_;
  int64_t active_, tiles_;  // active_: columns that are not padding
  int64_t chunk_ = 0, tile_first_ = 0;
};

}  // namespace xce::loss

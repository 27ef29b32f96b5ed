// One chunk of rows of the fused loss on the CPU: its valid rows are packed, then vocabulary tiles are shared out among
// the threads; a tile's logits are reduced to (max, sum) per row, and later turned into their gradients, while they lie
// in L2.
//   A kept tile holds e = exp(z - tile max) between the two passes, so that the second is a scaling.
//   Other tiles use a buffer per thread, and the second pass repeats the first matrix product.
// Invariants: 1. Row j < n_ of every packed array is chunk row map_[j]. 2. A tile of dweight and dbias is written by
// the one thread that owns it. 3. dx is summed per thread over its tiles, then over threads in order: no atomics, fixed
// order.
#pragma once

#include <algorithm>
#include <cmath>

#include "kernels/cpu/gemm.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cross_entropy/loss_rows.h"
#include "kernels/cross_entropy/tile_math.h"
#include "kernels/linear_cross_entropy/linear_cross_entropy.h"
#include "kernels/linear_cross_entropy/plan.h"

namespace xce::loss {

// Statistics of a chunk's rows, by chunk row: the three arrays of a set.
template <class A>
struct Statistics {
  A *max, *sum, *target;
};

template <class T>
class Chunk {
 public:
  using A = Accum<T>;
  using Set = Statistics<A>;
  using ConstSet = Statistics<const A>;

  Chunk(const CpuExec& exec, const LinearCrossEntropyForwardBackward& call, const LossPlan& plan)
      : exec_(exec), call_(call), in_(call.in), plan_(plan), base_(static_cast<char*>(call.workspace.data)) {
    ldx_ = in_.ldx ? in_.ldx : in_.hidden;
    ldw_ = in_.ldw ? in_.ldw : in_.hidden;
    vocab_global_ = in_.vocab_global < 0 ? in_.shard_offset + in_.vocab : in_.vocab_global;
    active_ = std::clamp<int64_t>(vocab_global_ - in_.shard_offset, 0, in_.vocab);
    tiles_ = loss_plan::ceil_div(active_, plan.tile_cols);
    map_ = reinterpret_cast<int64_t*>(base_ + plan.map);
    labels_ = reinterpret_cast<int64_t*>(base_ + plan.labels);
    A* values = array(plan.row_values);
    int64_t r = plan.chunk_rows;
    own_statistics_ = {values, values + r, values + 2 * r};
    offset_ = values + 3 * r, logsum_ = values + 4 * r, g_ = values + 5 * r, z_ = values + 6 * r,
    target_ = values + 7 * r;
  }

  Totals& totals() { return *reinterpret_cast<Totals*>(base_ + plan_.header); }
  Set own_statistics() const { return own_statistics_; }
  int64_t first_row() const { return first_; }
  int64_t rows() const { return rows_; }

  // Before chunk 0: the whole call's counts, which the mean's denominator needs.
  void count() { totals() = count_rows(in_.targets, in_.rows, vocab_global_); }

  void select(int64_t chunk) {
    chunk_ = chunk;
    first_ = chunk * plan_.chunk_rows;
    rows_ = std::min(plan_.chunk_rows, in_.rows - first_);
    n_ = 0;
    for (int64_t i = 0; i < rows_; ++i) {
      int64_t label = label_of(in_.targets, first_ + i);
      if (!is_valid(in_.targets, label, vocab_global_)) continue;
      map_[n_] = i;
      labels_[n_++] = label - in_.shard_offset;
    }
  }

  // Ignored rows are left out, so that nothing in them, not even NaN, reaches a product.
  void load_rows() {
    const T* x = static_cast<const T*>(in_.x);
    A* packed = array(plan_.x);
    parallel_for(exec_, n_, 16, [&](int64_t begin, int64_t end, int) {
      for (int64_t j = begin; j < end; ++j) {
        const T* from = x + (first_ + map_[j]) * ldx_;
        A* to = packed + j * in_.hidden;
#pragma omp simd
        for (int64_t h = 0; h < in_.hidden; ++h) to[h] = cpu::load(from, h);
      }
    });
  }

  void statistics(Set out) {
    std::fill_n(target_, n_, A(0));
    if (n_ > 0) {
      parallel_for(exec_, tiles_, 1, [&](int64_t begin, int64_t end, int thread) {
        for (int64_t t = begin; t < end; ++t) reduce_tile(t, thread);
      });
    }
    std::fill_n(out.max, rows_, -std::numeric_limits<A>::infinity());
    std::fill_n(out.sum, rows_, A(0));
    std::fill_n(out.target, rows_, A(0));
    parallel_for(exec_, n_, 16, [&](int64_t begin, int64_t end, int) {
      for (int64_t j = begin; j < end; ++j) {
        MaxSum all;
        for (int64_t t = 0; t < tiles_; ++t) all.merge(tile_stats(t)[j].max, tile_stats(t)[j].sum);
        out.max[map_[j]] = static_cast<A>(all.max);
        out.sum[map_[j]] = static_cast<A>(all.sum);
        out.target[map_[j]] = target_[j];
      }
    });
  }

  // Loss and residual of the chunk's rows; after the last chunk the reduced results.
  void losses(ConstSet set) {
    int64_t j = 0;
    for (int64_t i = 0; i < rows_; ++i) {
      if (j == n_ || map_[j] != i) {
        store_row<A>(call_.out, first_ + i, nullptr);
        continue;
      }
      RowLoss row = row_loss(set.max[i], set.sum[i], set.target[i], call_.options.z_loss);
      totals().loss += row.loss;
      totals().z_loss += row.z_loss;
      offset_[j] = static_cast<A>(row.offset);
      logsum_[j++] = static_cast<A>(row.logsum);
      store_row<A>(call_.out, first_ + i, &row);
    }
    if (chunk_ + 1 == plan_.chunks) store_totals<A>(call_.out, call_.options, totals());
  }

  // Instead of losses(): the residual of an earlier forward.
  void use_residual(const A* offset, const A* logsum) {
    for (int64_t j = 0; j < n_; ++j) {
      offset_[j] = offset[first_ + map_[j]];
      logsum_[j] = logsum[first_ + map_[j]];
    }
  }

  // Both at once where the device does better so; else false, and nothing done.
  bool losses_and_gradients() {
    return false;
  }
  void gradients_after_statistics() {
    gradients();
  }  // kept tiles know that they are

  void gradients() {
    const LinearCrossEntropyGradients& grad = call_.grad;
    if (!grad.dx && !grad.dweight && !grad.dbias) return;
    double d = denominator(call_.options, totals().n_valid);
    if (d == 0) n_ = 0;
    for (int64_t j = 0; j < n_; ++j) {
      double g = row_upstream<A>(call_.upstream, call_.options.reduction, d, first_ + map_[j]);
      double lse = static_cast<double>(offset_[j]) + static_cast<double>(logsum_[j]);
      g_[j] = static_cast<A>(g);
      z_[j] = call_.options.z_loss != 0 ? static_cast<A>(g * 2 * call_.options.z_loss * lse) : A(0);
    }
    if (chunk_ == 0 && !grad.accumulate_dweight) zero_weight_gradient(n_ == 0 ? 0 : active_);
    if (n_ > 0) {
      parallel_for(exec_, tiles_, 1, [&](int64_t begin, int64_t end, int thread) {
        for (int64_t t = begin; t < end; ++t) gradient_tile(t, thread, t == begin);
      });
    }
    if (!grad.dx) return;
    if (grad.dx_in_accum_dtype)
      store_dx(static_cast<A*>(grad.dx));
    else
      store_dx(static_cast<T*>(grad.dx));
  }

 private:
  struct Tile {
    int64_t first, cols;
  };
  struct Weight {
    const A* data;
    int64_t ld;
  };

  A* array(size_t at) const {
    return reinterpret_cast<A*>(base_ + at);
  }
  Tile tile(int64_t t) const {
    int64_t first = t * plan_.tile_cols;
    return {first, std::min(plan_.tile_cols, active_ - first)};
  }
  TileStats<A>* tile_stats(int64_t t) const {
    return reinterpret_cast<TileStats<A>*>(base_ + plan_.tile_stats) + t * plan_.chunk_rows;
  }
  A* tile_logits(int64_t t, int thread) const {
    int64_t tile_size = plan_.chunk_rows * plan_.tile_cols;
    return plan_.keeps(t) ? array(plan_.kept) + plan_.slot(t) * tile_size : array(plan_.buffers) + thread * tile_size;
  }
  A* dx_part(int thread) const {
    return array(plan_.dx) + thread * plan_.chunk_rows * in_.hidden;
  }

  Weight tile_weight(Tile tile, int thread) const {
    const T* w = static_cast<const T*>(in_.weight) + tile.first * ldw_;
    if constexpr (std::is_same_v<T, A>) {
      return {w, ldw_};
    } else {
      A* to = array(plan_.weight) + thread * plan_.tile_cols * in_.hidden;
      for (int64_t v = 0; v < tile.cols; ++v) {
#pragma omp simd
        for (int64_t h = 0; h < in_.hidden; ++h) to[v * in_.hidden + h] = cpu::load(w + v * ldw_, h);
      }
      return {to, in_.hidden};
    }
  }

  void logits(Tile tile, Weight w, A* z) const {
    cpu::gemm(cpu::Trans::kNo, cpu::Trans::kYes, n_, tile.cols, in_.hidden, A(1), array(plan_.x), in_.hidden, w.data,
              w.ld, A(0), z, tile.cols);
    if (!in_.bias) return;
    for (int64_t j = 0; j < n_; ++j)
      add_bias(z + j * tile.cols, static_cast<const T*>(in_.bias) + tile.first, tile.cols);
  }

  void reduce_tile(int64_t t, int thread) const {
    Tile here = tile(t);
    A* z = tile_logits(t, thread);
    logits(here, tile_weight(here, thread), z);
    for (int64_t j = 0; j < n_; ++j) {
      A* row = z + j * here.cols;
      int64_t y = labels_[j] - here.first;
      if (y >= 0 && y < here.cols) target_[j] = row[y];
      tile_stats(t)[j] = exponentials(row, here.cols);
    }
  }

  // Row j of a tile to k p - g [v = y], from e = exp(z - tile max) if kept, else from z; the difference is rounded
  // once.
  void gradient_row(int64_t j, Tile here, const TileStats<A>* kept, A* row) const {
    int64_t y = labels_[j] - here.first;
    bool has_target = y >= 0 && y < here.cols;
    A p = 0, k = g_[j] + z_[j];
    if (kept) {
      A factor = std::exp((kept[j].max - offset_[j]) - logsum_[j]);
      if (has_target) p = row[y] * factor;
      scale(row, here.cols, k * factor);
    } else {
      if (has_target) p = std::exp((row[y] - offset_[j]) - logsum_[j]);
      scaled_softmax(row, here.cols, offset_[j], logsum_[j], k);
    }
    if (has_target) row[y] = target_gradient(p, g_[j], z_[j]);
  }

  void gradient_tile(int64_t t, int thread, bool first_of_thread) const {
    const LinearCrossEntropyGradients& grad = call_.grad;
    Tile here = tile(t);
    A* z = tile_logits(t, thread);
    const TileStats<A>* kept = plan_.keeps(t) ? tile_stats(t) : nullptr;
    bool needs_weight = grad.dx || !kept;
    Weight w = needs_weight ? tile_weight(here, thread) : Weight{nullptr, 0};
    if (!kept) logits(here, w, z);
    for (int64_t j = 0; j < n_; ++j) gradient_row(j, here, kept, z + j * here.cols);
    bool add = chunk_ > 0 || grad.accumulate_dweight;
    if (grad.dbias) column_sums(z, n_, here.cols, static_cast<A*>(grad.dbias) + here.first, add);
    if (grad.dweight) {
      cpu::gemm(cpu::Trans::kYes, cpu::Trans::kNo, here.cols, in_.hidden, n_, A(1), z, here.cols, array(plan_.x),
                in_.hidden, add ? A(1) : A(0), static_cast<A*>(grad.dweight) + here.first * in_.hidden, in_.hidden);
    }
    if (grad.dx) {
      cpu::gemm(cpu::Trans::kNo, cpu::Trans::kNo, n_, in_.hidden, here.cols, A(1), z, here.cols, w.data, w.ld,
                first_of_thread ? A(0) : A(1), dx_part(thread), in_.hidden);
    }
  }

  // Columns no product writes: padding, or all of them when chunk 0 has no valid row.
  void zero_weight_gradient(int64_t from) const {
    parallel_for(exec_, in_.vocab - from, 1, [&](int64_t begin, int64_t end, int) {
      int64_t first = from + begin, count = end - begin;
      if (call_.grad.dweight)
        std::fill_n(static_cast<A*>(call_.grad.dweight) + first * in_.hidden, count * in_.hidden, A(0));
      if (call_.grad.dbias) std::fill_n(static_cast<A*>(call_.grad.dbias) + first, count, A(0));
    });
  }

  template <class D>
  void store_dx(D* dx) const {
    int64_t parts = n_ > 0 ? std::min<int64_t>(tiles_, exec_.pool->size()) : 0;
    bool add = call_.grad.accumulate_dx;
    parallel_for(exec_, rows_, 16, [&](int64_t begin, int64_t end, int) {
      int64_t j = std::lower_bound(map_, map_ + n_, begin) - map_;
      for (int64_t i = begin; i < end; ++i) {
        D* to = dx + (first_ + i) * in_.hidden;
        if (parts == 0 || j == n_ || map_[j] != i) {
          if (!add) std::fill_n(to, in_.hidden, D(0.0f));
          continue;
        }
        const A* sum = dx_part(0) + j * in_.hidden;
        for (int64_t part = 1; part < parts; ++part)
          add_row(dx_part(0) + j * in_.hidden, dx_part(part) + j * in_.hidden);
#pragma omp simd
        for (int64_t h = 0; h < in_.hidden; ++h) cpu::store(to, h, add ? cpu::load(to, h) + sum[h] : sum[h]);
        ++j;
      }
    });
  }
  void add_row(A* to, const A* from) const {
#pragma omp simd
    for (int64_t h = 0; h < in_.hidden; ++h) to[h] += from[h];
  }

  CpuExec exec_;
  const LinearCrossEntropyForwardBackward& call_;
  const LinearCrossEntropyInputs& in_;
  LossPlan plan_;
  char* base_;
  int64_t ldx_, ldw_, vocab_global_, active_, tiles_;  // active_: columns that are not padding
  int64_t *map_, *labels_;                             // labels_ relative to the shard
  Statistics<A> own_statistics_;
  A *offset_, *logsum_, *g_, *z_, *target_;
  int64_t chunk_ = 0, first_ = 0, rows_ = 0, n_ = 0;
};

}  // namespace xce::loss

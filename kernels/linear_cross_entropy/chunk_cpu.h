// One chunk of rows of the fused loss on the CPU: its valid rows are packed, then vocabulary tiles are shared out among
// the threads; a tile's logits are reduced to (max, sum) per row, and later turned into their gradients, while they lie
// in L2.
//   A kept tile holds e = exp(z - tile max) between the two passes, so that the second is a scaling; with softcap it
//   holds z, which the slope needs.
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

template <class T>
class Chunk {
 public:
  using A = Accum<T>;
  using Call = LinearCrossEntropyForwardBackward;

  Chunk(const CpuExec& exec, const Call& call, const LossPlan& plan, Extras extras)
      : exec_(exec),
        call_(call),
        in_(call.in),
        plan_(plan),
        extras_(extras),
        base_(static_cast<char*>(call.workspace.data)),
        vocab_global_(in_.vocab_global < 0 ? in_.shard_offset + in_.vocab : in_.vocab_global),
        active_(std::clamp<int64_t>(vocab_global_ - in_.shard_offset, 0, in_.vocab)),
        tiles_(loss_plan::ceil_div(active_, plan.tile_cols)),
        map_logits_(call.options),
        mass_(in_.targets, call.options, in_.vocab, vocab_global_, in_.shard_offset) {
    ldx_ = in_.ldx ? in_.ldx : in_.hidden;
    ldw_ = in_.ldw ? in_.ldw : in_.hidden;
    ld_dx_ = call.grad.ld_dx ? call.grad.ld_dx : in_.hidden;
    ld_dweight_ = call.grad.ld_dweight ? call.grad.ld_dweight : in_.hidden;
    map_ = reinterpret_cast<int64_t*>(base_ + plan.map);
    labels_ = reinterpret_cast<int64_t*>(base_ + plan.labels);
    row_ = reinterpret_cast<Row*>(base_ + plan.rows);
  }

  Totals& totals() { return *reinterpret_cast<Totals*>(base_ + plan_.header); }
  StatisticsView own_statistics() const {
    return {reinterpret_cast<double*>(base_ + plan_.statistics), plan_.chunk_rows, 0};
  }
  int64_t first_row() const { return first_; }
  int64_t rows() const { return rows_; }

  // Before chunk 0: the whole call's counts, which the mean's denominator needs.
  void count() { totals() = count_rows<A>(in_.targets, call_.options, in_.rows, vocab_global_); }

  void select(int64_t chunk) {
    chunk_ = chunk;
    first_ = chunk * plan_.chunk_rows;
    rows_ = std::min(plan_.chunk_rows, in_.rows - first_);
    n_ = 0;
    for (int64_t i = 0; i < rows_; ++i) {
      const RowTarget target = target_of(i);
      if (!target.valid) continue;
      map_[n_] = i;
      labels_[n_++] = target.label == kNoLabel ? kNoLabel : target.label - in_.shard_offset;
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

  void statistics(StatisticsView out) {
    for (int64_t j = 0; j < n_; ++j) row_[j].label_logit = 0;
    if (n_ > 0) {
      parallel_for(exec_, tiles_, 1, [&](int64_t begin, int64_t end, int thread) {
        for (int64_t t = begin; t < end; ++t) reduce_tile(t, thread);
      });
    }
    for (int64_t i = 0; i < rows_; ++i) out.store(i, RowStatistics{});
    parallel_for(exec_, n_, 16, [&](int64_t begin, int64_t end, int) {
      for (int64_t j = begin; j < end; ++j) {
        RowStatistics all;
        for (int64_t t = 0; t < tiles_; ++t)
          all.merge(row_statistics(tile_stats(t)[j], extras_.any() ? &tile_extras(t)[j] : nullptr,
                                   in_.shard_offset + tile(t).first));
        all.target = static_cast<double>(row_[j].label_logit);
        out.store(map_[j], all);
      }
    });
  }

  // Loss and residual of the chunk's rows; after the last chunk the reduced results.
  void losses(StatisticsView set) {
    const LossOptions& options = call_.options;
    int64_t j = 0;
    for (int64_t i = 0; i < rows_; ++i) {
      const RowTarget target = target_of(i);
      if (!target.valid) {
        store_row<A>(options, call_.out, first_ + i, target, nullptr);
        continue;
      }
      const RowStatistics s = set.load(i);
      const Mass mass = mass_of<A>(options, totals(), target.label, vocab_global_);
      const RowLoss row = row_loss(s, mass, target.token_weight, options.z_loss);
      add_loss(totals(), row, target);
      row_[j++].gradient.set_residual(options, mass, s.mass, static_cast<A>(row.offset), static_cast<A>(row.logsum));
      store_row<A>(options, call_.out, first_ + i, target, &row);
    }
    if (chunk_ + 1 == plan_.chunks) store_totals<A>(call_.out, options, totals());
  }

  // Instead of losses(): the residual of an earlier forward.
  void use_residual(const void* offset, const void* logsum) {
    parallel_for(exec_, n_, 1, [&](int64_t begin, int64_t end, int) {
      for (int64_t j = begin; j < end; ++j) {
        const int64_t i = first_ + map_[j];
        const Mass mass = mass_of<A>(call_.options, totals(), target_of(map_[j]).label, vocab_global_);
        row_[j].gradient.set_residual(call_.options, mass, mass.by_row ? mass_.sum(i, active_) : 0,
                                      static_cast<const A*>(offset)[i], static_cast<const A*>(logsum)[i]);
      }
    });
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
    const double d = denominator(call_.options, totals());
    if (d == 0) n_ = 0;
    for (int64_t j = 0; j < n_; ++j)
      row_[j].gradient.g =
          row_factor<A>(call_.upstream, call_.options, target_of(map_[j]).token_weight, d, first_ + map_[j]);
    if (chunk_ == 0 && !grad.accumulate_dweight) {
      const int64_t from = n_ == 0 ? 0 : active_;
      if (grad.dweight_in_dtype)
        zero_weight_gradient<T>(from);
      else
        zero_weight_gradient<A>(from);
    }
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
  struct Row {
    RowGradient<A> gradient;
    A label_logit;
  };
  static_assert(sizeof(Row) <= loss_plan::kRowDoubles * 8 + loss_plan::kRowValues * sizeof(A));
  static_assert(sizeof(Totals) <= loss_plan::kHeaderBytes && kLossStatistics == loss_plan::kStatistics);
  static_assert(sizeof(TileStats<A>) == loss_plan::kTileStats * sizeof(A));
  static_assert(sizeof(TileExtras<A>) == loss_plan::kTileExtras * sizeof(A));
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
  RowTarget target_of(int64_t i) const {
    return row_target<A>(in_.targets, call_.options, vocab_global_, first_ + i);
  }
  Tile tile(int64_t t) const {
    int64_t first = t * plan_.tile_cols;
    return {first, std::min(plan_.tile_cols, active_ - first)};
  }
  TileStats<A>* tile_stats(int64_t t) const {
    return reinterpret_cast<TileStats<A>*>(base_ + plan_.tile_stats) + t * plan_.chunk_rows;
  }
  TileExtras<A>* tile_extras(int64_t t) const {
    return reinterpret_cast<TileExtras<A>*>(base_ + plan_.tile_extras) + t * plan_.chunk_rows;
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
    if (!in_.bias && map_logits_.is_identity()) return;
    for (int64_t j = 0; j < n_; ++j) {
      A* row = z + j * tile.cols;
      if (in_.bias) add_bias(row, static_cast<const T*>(in_.bias) + tile.first, tile.cols);
      map_logits_.apply(row, tile.cols);
    }
  }

  // The mass of a tile's columns in row j, or null; rows come in order, and `buffer` is theirs.
  const A* tile_mass(int64_t j, Tile tile, A* buffer) const {
    if (!extras_.mass) return nullptr;
    if (j == 0 || mass_.by_row()) mass_.read(first_ + map_[j], tile.first, tile.cols, buffer);
    return buffer;
  }

  void reduce_tile(int64_t t, int thread) const {
    const Tile here = tile(t);
    A* z = tile_logits(t, thread);
    A mass[loss_plan::kMaxTileCols];
    logits(here, tile_weight(here, thread), z);
    for (int64_t j = 0; j < n_; ++j) {
      A* row = z + j * here.cols;
      const int64_t y = labels_[j] - here.first;
      if (y >= 0 && y < here.cols) row_[j].label_logit = row[y];
      if (extras_.any() || keeps_logits())
        tile_stats(t)[j] = run_statistics(extras_, row, tile_mass(j, here, mass), here.cols, keeps_logits(),
                                          extras_.any() ? &tile_extras(t)[j] : nullptr);
      else
        tile_stats(t)[j] = exponentials(row, here.cols);
    }
  }
  bool keeps_logits() const {
    return map_logits_.cap != 0;
  }

  void gradient_tile(int64_t t, int thread, bool first_of_thread) const {
    const LinearCrossEntropyGradients& grad = call_.grad;
    const Tile here = tile(t);
    A* z = tile_logits(t, thread);
    const bool kept = plan_.keeps(t), needs_weight = grad.dx || !kept;
    const TileStats<A>* stats = kept && !keeps_logits() ? tile_stats(t) : nullptr;
    const Weight w = needs_weight ? tile_weight(here, thread) : Weight{nullptr, 0};
    A mass[loss_plan::kMaxTileCols];
    if (!kept) logits(here, w, z);
    for (int64_t j = 0; j < n_; ++j)
      gradient_run(z + j * here.cols, tile_mass(j, here, mass), here.cols, labels_[j] - here.first, row_[j].gradient,
                   stats ? &stats[j].max : nullptr, map_logits_.cap);
    if (grad.dweight_in_dtype && !std::is_same_v<T, A>)
      rounded_weight_gradient(here, z, thread);
    else
      weight_gradient(here, z);
    if (grad.dx) {
      cpu::gemm(cpu::Trans::kNo, cpu::Trans::kNo, n_, in_.hidden, here.cols, A(1), z, here.cols, w.data, w.ld,
                first_of_thread ? A(0) : A(1), dx_part(thread), in_.hidden);
    }
  }

  void weight_product(Tile tile, const A* z, A beta, A* to, int64_t ld) const {
    cpu::gemm(cpu::Trans::kYes, cpu::Trans::kNo, tile.cols, in_.hidden, n_, A(1), z, tile.cols, array(plan_.x),
              in_.hidden, beta, to, ld);
  }
  void weight_gradient(Tile tile, const A* z) const {
    const LinearCrossEntropyGradients& grad = call_.grad;
    const bool add = chunk_ > 0 || grad.accumulate_dweight;
    if (grad.dbias) column_sums(z, n_, tile.cols, static_cast<A*>(grad.dbias) + tile.first, add);
    if (grad.dweight)
      weight_product(tile, z, add ? A(1) : A(0), static_cast<A*>(grad.dweight) + tile.first * ld_dweight_, ld_dweight_);
  }
  // The same in dtype: all rows are here, so that each sum is rounded once.
  void rounded_weight_gradient(Tile tile, const A* z, int thread) const {
    const LinearCrossEntropyGradients& grad = call_.grad;
    A* sums = array(plan_.dweight) + thread * plan_.tile_cols * (in_.hidden + 1);
    if (grad.dbias) {
      column_sums(z, n_, tile.cols, sums, false);
      round_row(sums, static_cast<T*>(grad.dbias) + tile.first, tile.cols);
    }
    if (!grad.dweight) return;
    weight_product(tile, z, A(0), sums, in_.hidden);
    for (int64_t v = 0; v < tile.cols; ++v)
      round_row(sums + v * in_.hidden, static_cast<T*>(grad.dweight) + (tile.first + v) * ld_dweight_, in_.hidden);
  }
  static void round_row(const A* from, T* to, int64_t n) {
#pragma omp simd
    for (int64_t h = 0; h < n; ++h) cpu::store(to, h, from[h]);
  }

  // Columns no product writes: padding, or all of them when chunk 0 has no valid row.
  template <class D>
  void zero_weight_gradient(int64_t from) const {
    parallel_for(exec_, in_.vocab - from, 1, [&](int64_t begin, int64_t end, int) {
      for (int64_t v = from + begin; v < from + end; ++v) {
        if (call_.grad.dweight) std::fill_n(static_cast<D*>(call_.grad.dweight) + v * ld_dweight_, in_.hidden, D(0.0f));
        if (call_.grad.dbias) static_cast<D*>(call_.grad.dbias)[v] = D(0.0f);
      }
    });
  }

  template <class D>
  void store_dx(D* dx) const {
    int64_t parts = n_ > 0 ? std::min<int64_t>(tiles_, exec_.pool->size()) : 0;
    bool add = call_.grad.accumulate_dx;
    parallel_for(exec_, rows_, 16, [&](int64_t begin, int64_t end, int) {
      int64_t j = std::lower_bound(map_, map_ + n_, begin) - map_;
      for (int64_t i = begin; i < end; ++i) {
        D* to = dx + (first_ + i) * ld_dx_;
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
  const Call& call_;
  const LinearCrossEntropyInputs& in_;
  LossPlan plan_;
  Extras extras_;
  char* base_;
  int64_t vocab_global_, active_, tiles_;  // active_: columns that are not padding
  LogitMap<A> map_logits_;
  MassReader<A> mass_;
  int64_t ldx_, ldw_, ld_dx_, ld_dweight_;
  int64_t *map_, *labels_;  // labels_ relative to the shard
  Row* row_;
  int64_t chunk_ = 0, first_ = 0, rows_ = 0, n_ = 0;
};

}  // namespace xce::loss

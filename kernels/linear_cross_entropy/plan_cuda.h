// How a call of the fused loss is cut on a GPU: balanced chunks of rows, each over the whole vocabulary at once (its
// logits stay until their gradients are done) or, in small budgets, over parts of it (computed twice where gradients
// follow). Pure arithmetic of shapes and budget: constexpr, the same on every machine and rank.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/base/check.h"

namespace xce {

struct CudaLossShape {
  int64_t rows, hidden, vocab;
  int64_t bytes, accum_bytes;  // sizes of dtype and accum_dtype
  bool may_keep;               // forward_backward: logits of one tile serve twice
  bool gradients;
  bool single_chunk = false;  // the weights' gradient is rounded once: all rows at once, whatever that leaves for tiles
};

struct CudaLossPlan {
  int64_t chunk_rows, chunks;  // every chunk has chunk_rows rows but the last, which may have fewer
  int64_t tile_cols, tiles;    // likewise of the vocabulary
  int64_t ld;                  // of the logits, a multiple of 8: others make the products 2.4 times as slow
  // Byte offsets into the workspace, and its size; the logits come first, best aligned.
  size_t header, scale, row_sums, statistics, row_values, x, dx, total;
};

namespace cuda_loss_plan {

inline constexpr int64_t kColStep = 8;
inline constexpr size_t kHeaderBytes = 64, kScaleBytes = 64;
// Values per row of a chunk: fp64 (loss, z-loss, mass; the statistics) and accum_dtype (the residual).
inline constexpr int64_t kRowSums = 3, kStatistics = 7, kRowValues = 2;

constexpr int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}
constexpr int64_t round_up(int64_t a, int64_t b) {
  return ceil_div(a, b) * b;
}

constexpr CudaLossPlan layout(const CudaLossShape& s, int64_t rows, int64_t cols) {
  CudaLossPlan plan{};
  plan.chunk_rows = rows;
  plan.chunks = ceil_div(std::max<int64_t>(s.rows, 1), rows);
  plan.tile_cols = std::min(cols, s.vocab);
  plan.tiles = ceil_div(s.vocab, plan.tile_cols);
  plan.ld = round_up(plan.tile_cols, kColStep);
  size_t used = 0;
  auto take = [&used](int64_t bytes) {
    size_t at = used;
    used += static_cast<size_t>(round_up(bytes, 64));
    return at;
  };
  take(rows * plan.ld * s.accum_bytes);
  plan.header = take(kHeaderBytes);
  plan.scale = take(kScaleBytes);
  plan.row_sums = take(kRowSums * rows * 8);
  plan.statistics = take(kStatistics * rows * 8);
  plan.row_values = take(kRowValues * rows * s.accum_bytes);
  plan.x = take(rows * s.hidden * s.bytes);
  // dx of narrow dtypes is summed over the tiles before it is rounded.
  plan.dx = take(plan.tiles > 1 && s.gradients && s.bytes < s.accum_bytes ? rows * s.hidden * s.accum_bytes : 0);
  plan.total = used;
  return plan;
}

// Time in units of one row's products, fitted to an H200. A chunk re-reads and re-writes the weights' gradient, as dear
// as 200 rows; a tile does that with dx and reads its logits twice, as dear as 420 columns; parts of a vocabulary are
// multiplied once more.
constexpr double cost(const CudaLossShape& s, const CudaLossPlan& plan) {
  constexpr double kChunkRowCost = 200, kTileColCost = 420;
  double tiled = plan.tiles == 1 ? 0 : (s.may_keep ? 1.0 / 3 : 0) + kTileColCost / static_cast<double>(plan.tile_cols);
  return static_cast<double>(s.rows) * (1 + tiled) + kChunkRowCost * static_cast<double>(plan.chunks);
}

// The largest n in [0, most] with fits(n), a property that ends at some n.
template <class Fits>
constexpr int64_t largest(int64_t most, Fits&& fits) {
  int64_t low = 0, high = most;
  while (low < high) {
    int64_t middle = low + (high - low + 1) / 2;
    if (fits(middle))
      low = middle;
    else
      high = middle - 1;
  }
  return low;
}

// n cut evenly into as few parts of at most `most` as can be: multiples of `step` where `most` allows, else of
// kColStep, because products of other widths are several times as slow.
constexpr int64_t balanced(int64_t n, int64_t most, int64_t step) {
  const int64_t part = ceil_div(n, ceil_div(n, most));
  for (int64_t multiple : {step, kColStep})
    if (round_up(part, multiple) <= most) return round_up(part, multiple);
  return part;
}

}  // namespace cuda_loss_plan

// The smallest workspace of any plan: one row (or all of a single chunk), and the narrowest tile or the whole
// vocabulary.
constexpr size_t minimum_workspace_bytes(const CudaLossShape& s) {
  using namespace cuda_loss_plan;
  const int64_t rows = s.single_chunk ? std::max<int64_t>(s.rows, 1) : 1;
  return std::min(layout(s, rows, kColStep).total, layout(s, rows, s.vocab).total);
}

// The cheapest plan that fits the budget.
constexpr CudaLossPlan plan_loss(const CudaLossShape& s, size_t budget_bytes) {
  using namespace cuda_loss_plan;
  if (minimum_workspace_bytes(s) > budget_bytes)
    throw Error(ErrorCode::kRuntime,
                str("expected a loss workspace budget of at least ", minimum_workspace_bytes(s), " bytes",
                    s.single_chunk ? " (dweight_in_dtype: all rows are one chunk)" : "", ", got ", budget_bytes));
  const int64_t all_rows = std::max<int64_t>(s.rows, 1);
  auto fits = [&](int64_t rows, int64_t cols) { return layout(s, rows, cols).total <= budget_bytes; };
  CudaLossPlan best{};
  auto consider = [&](int64_t rows, int64_t cols) {
    CudaLossPlan plan = layout(s, rows, cols);
    if (best.total == 0 || cost(s, plan) < cost(s, best)) best = plan;
  };
  const int64_t most_rows = s.single_chunk ? (fits(all_rows, s.vocab) ? all_rows : 0)
                                           : largest(all_rows, [&](int64_t rows) { return fits(rows, s.vocab); });
  if (most_rows > 0) consider(std::min(all_rows, balanced(all_rows, most_rows, most_rows >= 1024 ? 128 : 1)), s.vocab);
  for (int64_t rows = all_rows;; rows = ceil_div(rows, 2)) {
    int64_t most = kColStep * largest((s.vocab - 1) / kColStep, [&](int64_t n) { return fits(rows, kColStep * n); });
    if (most > 0) consider(rows, balanced(s.vocab, most, most >= 1024 ? 128 : kColStep));
    if (rows == 1 || s.single_chunk) break;
  }
  return best;
}

}  // namespace xce

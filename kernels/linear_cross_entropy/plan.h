// How a call of the fused loss is cut into chunks of rows and tiles of the vocabulary, and where things lie in its
// workspace. Pure arithmetic of shapes, budget and thread count: constexpr, the same on every machine.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/base/check.h"

namespace xce {

struct LossShape {
  int64_t rows, hidden, vocab;
  int64_t accum_bytes;  // size of accum_dtype
  int64_t threads;
  bool converts_weight;    // the weights are not of accum_dtype: each thread converts one tile of them at a time
  bool may_keep;           // a chunk's logits may stay until its gradients are done (forward_backward)
  bool gradients;          // dx is summed per thread
  bool extras = false;     // tiles have statistics beside (max, sum)
  bool one_chunk = false;  // of all rows: each thread rounds a whole tile of dweight from a buffer
};

struct LossPlan {
  int64_t chunk_rows, chunks;  // every chunk has chunk_rows rows but the last, which may have fewer
  int64_t tile_cols, tiles;    // likewise of the vocabulary
  int64_t kept_tiles;          // the others' logits live in a buffer per thread and are recomputed for the gradients
  // Byte offsets into the workspace, and its size.
  size_t header, map, labels, statistics, rows, tile_stats, tile_extras, x, dx, weight, dweight, buffers, kept, bytes;

  // Kept tiles are spread evenly, so that every thread's share of the tiles has its share of them: tile t is the
  // slot(t)-th.
  constexpr int64_t slot(int64_t t) const { return t * kept_tiles / tiles; }
  constexpr bool keeps(int64_t t) const { return slot(t + 1) > slot(t); }
};

namespace loss_plan {

inline constexpr int64_t kMaxChunkRows = 512;   // taller: no faster products, but dx sums that leave L2
inline constexpr int64_t kTileBytes = 1 << 20;  // a tile's logits, half of a core's L2: read three times while there
inline constexpr int64_t kWeightTileBytes = 4 << 20;
inline constexpr int64_t kMinTileCols = 64, kMaxTileCols = 512, kColStep = 16, kRowStep = 16;
inline constexpr int64_t kStatistics = 7;                  // fp64 values per row of a chunk
inline constexpr int64_t kRowDoubles = 4, kRowValues = 4;  // values of fp64 and of accum_dtype per row of a chunk
inline constexpr int64_t kTileStats = 2, kTileExtras = 4;  // accum_dtype values per row and tile
inline constexpr size_t kHeaderBytes = 64, kAlign = 64;

constexpr int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}
constexpr int64_t round_up(int64_t a, int64_t b) {
  return ceil_div(a, b) * b;
}

// The tile's width at this chunk height: about kTileBytes of logits, and as many tiles for each thread.
constexpr int64_t tile_cols(const LossShape& s, int64_t chunk_rows, int64_t limit) {
  int64_t cols = std::clamp(kTileBytes / (chunk_rows * s.accum_bytes), kMinTileCols, kMaxTileCols);
  if (s.converts_weight) cols = std::min(cols, kWeightTileBytes / (s.hidden * s.accum_bytes));
  cols = std::max(std::min(cols, limit) / kColStep * kColStep, kColStep);
  int64_t tiles = round_up(ceil_div(s.vocab, cols), s.threads);
  return round_up(ceil_div(s.vocab, tiles), kColStep);
}

// Chunks of at most `rows` rows, all equally tall, keeping what fits the budget; bytes above it when nothing does.
constexpr LossPlan layout(const LossShape& s, int64_t rows, int64_t tile_limit, size_t budget_bytes) {
  LossPlan plan{};
  int64_t all_rows = std::max<int64_t>(s.rows, 1);
  if (s.one_chunk) rows = all_rows;
  rows = ceil_div(all_rows, ceil_div(all_rows, rows));
  if (rows > kRowStep) rows = std::min(round_up(rows, kRowStep), all_rows);
  plan.chunk_rows = rows;
  plan.chunks = ceil_div(all_rows, rows);
  plan.tile_cols = tile_cols(s, rows, tile_limit);
  plan.tiles = ceil_div(s.vocab, plan.tile_cols);
  size_t used = 0;
  auto take = [&used](int64_t bytes) {
    size_t at = used;
    used += (static_cast<size_t>(bytes) + kAlign - 1) / kAlign * kAlign;
    return at;
  };
  plan.header = take(kHeaderBytes);
  plan.map = take(rows * 8);
  plan.labels = take(rows * 8);
  plan.statistics = take(kStatistics * rows * 8);
  plan.rows = take(rows * (kRowDoubles * 8 + kRowValues * s.accum_bytes));
  plan.tile_stats = take(kTileStats * plan.tiles * rows * s.accum_bytes);
  plan.tile_extras = take(s.extras ? kTileExtras * plan.tiles * rows * s.accum_bytes : 0);
  plan.x = take(rows * s.hidden * s.accum_bytes);
  plan.dx = take(s.gradients ? s.threads * rows * s.hidden * s.accum_bytes : 0);
  plan.weight = take(s.converts_weight ? s.threads * plan.tile_cols * s.hidden * s.accum_bytes : 0);
  plan.dweight = take(s.one_chunk ? s.threads * plan.tile_cols * (s.hidden + 1) * s.accum_bytes : 0);
  plan.buffers = plan.kept = used;
  int64_t tile_bytes = rows * plan.tile_cols * s.accum_bytes;
  if (s.may_keep && used + static_cast<size_t>(plan.tiles * tile_bytes) <= budget_bytes) {
    plan.kept_tiles = plan.tiles;
  } else {
    plan.kept = plan.buffers + static_cast<size_t>(s.threads * tile_bytes);
    if (s.may_keep && plan.kept < budget_bytes)
      plan.kept_tiles = std::min(plan.tiles - 1, static_cast<int64_t>(budget_bytes - plan.kept) / tile_bytes);
  }
  plan.bytes = plan.kept + static_cast<size_t>(plan.kept_tiles * tile_bytes);
  return plan;
}

// Time in units of one row's three products. A chunk re-reads and re-packs the weights and their gradient, as dear as
// kChunkRowCost rows; a recomputed tile costs a fourth product; a narrow tile re-packs x and re-reads dx more often.
constexpr double cost(const LossShape& s, const LossPlan& plan) {
  constexpr double kChunkRowCost = 28, kNarrowCost = 16;
  double recomputed = s.may_keep ? 1 - static_cast<double>(plan.kept_tiles) / static_cast<double>(plan.tiles) : 0;
  double narrow = kNarrowCost / static_cast<double>(plan.tile_cols);
  return static_cast<double>(s.rows) * (1 + recomputed / 3 + narrow) + kChunkRowCost * static_cast<double>(plan.chunks);
}

}  // namespace loss_plan

// The smallest workspace of any plan: one row at a time (or all of them, of one_chunk), of the tile widths the
// smallest. A vocabulary of one tile is kept whole more cheaply than in a buffer per thread.
constexpr size_t minimum_workspace_bytes(const LossShape& s) {
  using namespace loss_plan;
  size_t least = SIZE_MAX;
  for (int64_t limit = kMaxTileCols; limit >= kColStep; limit /= 2)
    for (size_t budget : {size_t{0}, SIZE_MAX}) least = std::min(least, layout(s, 1, limit, budget).bytes);
  return least;
}

// The cheapest plan that fits the budget, of every chunk height and tile width worth a look.
constexpr LossPlan plan_loss(const LossShape& s, size_t budget_bytes) {
  using namespace loss_plan;
  LossPlan best{};
  double best_cost = 0;
  for (int64_t limit = kMaxTileCols; limit >= kColStep; limit /= 2) {
    for (int64_t rows = kMaxChunkRows; rows >= 1; rows = rows > kRowStep ? rows - kRowStep : rows / 2) {
      LossPlan plan = layout(s, rows, limit, budget_bytes);
      if (s.one_chunk) rows = 1;  // the only height
      if (plan.bytes > budget_bytes) continue;
      double plan_cost = cost(s, plan);
      if (best.bytes == 0 || plan_cost < best_cost) best = plan, best_cost = plan_cost;
    }
  }
  if (best.bytes == 0) {
    throw Error(ErrorCode::kRuntime,
                str("expected a loss workspace budget of at least ", minimum_workspace_bytes(s), " bytes",
                    s.one_chunk ? " (dweight_in_dtype keeps all rows)" : "", ", got ", budget_bytes));
  }
  return best;
}

}  // namespace xce

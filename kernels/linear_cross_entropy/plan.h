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
  bool converts_weight;  // the weights are not of accum_dtype: each thread converts one tile of them at a time
  bool keeps_logits;     // a chunk's logits may stay until its gradients are done (forward_backward)
  bool gradients;        // dx is summed per thread
};

struct LossPlan {
  int64_t chunk_rows, chunks;  // every chunk has chunk_rows rows but the last, which may have fewer
  int64_t tile_cols, tiles;    // likewise of the vocabulary
  bool keeps_logits;           // else a tile's logits live in a buffer per thread and are recomputed for the gradients
  // Byte offsets into the workspace, and its size.
  size_t header, map, labels, row_values, tile_stats, x, dx, weight, logits, bytes;
};

namespace loss_plan {

inline constexpr int64_t kMaxChunkRows = 1024;  // more rows save nothing: every matrix product is at its best speed
inline constexpr int64_t kMinKeptRows = 32;     // below it, re-reading the weights costs more than recomputing logits
inline constexpr int64_t kTileBytes = 1 << 20;  // a tile's logits, half of a core's L2: read three times while there
inline constexpr int64_t kWeightTileBytes = 4 << 20;
inline constexpr int64_t kMinTileCols = 64, kMaxTileCols = 4096, kColStep = 16;
inline constexpr int64_t kRowValues = 8;  // accum_dtype values per row of a chunk
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

constexpr LossPlan layout(const LossShape& s, int64_t chunk_rows, int64_t tile_limit, bool keeps_logits) {
  LossPlan plan{};
  plan.chunk_rows = chunk_rows;
  plan.chunks = std::max<int64_t>(1, ceil_div(s.rows, chunk_rows));
  plan.tile_cols = tile_cols(s, chunk_rows, tile_limit);
  plan.tiles = ceil_div(s.vocab, plan.tile_cols);
  plan.keeps_logits = keeps_logits;
  size_t used = 0;
  auto take = [&used](int64_t bytes) {
    size_t at = used;
    used += (static_cast<size_t>(bytes) + kAlign - 1) / kAlign * kAlign;
    return at;
  };
  int64_t tile_values = chunk_rows * plan.tile_cols;
  plan.header = take(kHeaderBytes);
  plan.map = take(chunk_rows * 8);
  plan.labels = take(chunk_rows * 8);
  plan.row_values = take(kRowValues * chunk_rows * s.accum_bytes);
  plan.tile_stats = take(plan.tiles * chunk_rows * 2 * s.accum_bytes);
  plan.x = take(chunk_rows * s.hidden * s.accum_bytes);
  plan.dx = take(s.gradients ? s.threads * chunk_rows * s.hidden * s.accum_bytes : 0);
  plan.weight = take(s.converts_weight ? s.threads * plan.tile_cols * s.hidden * s.accum_bytes : 0);
  plan.logits = take((keeps_logits ? chunk_rows * s.vocab : s.threads * tile_values) * s.accum_bytes);
  plan.bytes = used;
  return plan;
}

// The tallest chunk within the budget at this tile width, chunks made equally tall; chunk_rows 0 when one row does not
// fit.
constexpr LossPlan tallest(const LossShape& s, size_t budget_bytes, int64_t tile_limit, bool keeps_logits) {
  int64_t low = 0, high = std::clamp<int64_t>(s.rows, 1, kMaxChunkRows);
  while (low < high) {
    int64_t mid = (low + high + 1) / 2;
    if (layout(s, mid, tile_limit, keeps_logits).bytes <= budget_bytes)
      low = mid;
    else
      high = mid - 1;
  }
  if (low == 0) return {};
  for (int64_t count = ceil_div(std::max<int64_t>(s.rows, 1), low);; ++count) {
    int64_t rows = ceil_div(std::max<int64_t>(s.rows, 1), count);
    LossPlan plan = layout(s, rows, tile_limit, keeps_logits);
    if (plan.bytes <= budget_bytes) return plan;
    if (rows == 1) return {};
  }
}

}  // namespace loss_plan

// The smallest workspace of any plan: one row at a time, the narrowest tile.
constexpr size_t minimum_workspace_bytes(const LossShape& s) {
  size_t recompute = loss_plan::layout(s, 1, loss_plan::kColStep, false).bytes;
  return s.keeps_logits ? std::min(recompute, loss_plan::layout(s, 1, loss_plan::kColStep, true).bytes) : recompute;
}

// Kept logits when their chunks have a useful height, else recomputed ones; narrower tiles only when a budget asks for
// them.
constexpr LossPlan plan_loss(const LossShape& s, size_t budget_bytes) {
  using namespace loss_plan;
  int64_t useful = std::min(std::max<int64_t>(s.rows, 1), kMinKeptRows);
  LossPlan best{};
  for (bool keep : {true, false}) {
    if (keep && !s.keeps_logits) continue;
    for (int64_t limit = kMaxTileCols; limit >= kColStep; limit /= 4) {
      LossPlan plan = tallest(s, budget_bytes, limit, keep);
      if (plan.chunk_rows >= useful) return plan;
      if (plan.chunk_rows > best.chunk_rows) best = plan;
    }
  }
  if (best.chunk_rows == 0) {
    throw Error(ErrorCode::kRuntime, str("expected a loss workspace budget of at least ", minimum_workspace_bytes(s),
                                         " bytes, got ", budget_bytes));
  }
  return best;
}

}  // namespace xce

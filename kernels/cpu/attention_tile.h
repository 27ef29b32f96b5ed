// What forward and backward of attention share on the CPU: where a tile of keys meets a tile of queries, how rows are
// brought in, and the scores. Scores are kept transposed, (keys, queries): then maximum, sum and exp run over vectors
// of queries, and keys and values are read as they lie in memory.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cpu/tile.h"
#include "kernels/cpu/vec.h"

namespace xce::cpu {

inline constexpr int64_t kTileQueries = 64, kTileKeys = 64;  // a multiple of every kLanes and of kTileRows

// Keys [key0, key0 + keys) against queries [query0, query0 + queries) of one sequence; indices below are within the
// tile.
struct TilePair {
  int64_t query0, queries, key0, keys;

  int64_t first_query(int64_t key) const { return std::clamp<int64_t>(key0 + key - query0, 0, queries); }
  int64_t key_end(int64_t query) const { return std::clamp<int64_t>(query0 + query + 1 - key0, 0, keys); }
};

// dst (rows, width) = scale * src, zero in columns from cols on and in further rows to a whole vector of rows; src rows
// lie `stride` apart.
template <class T>
void load_rows(const T* src, int64_t stride, int64_t rows, int64_t cols, int64_t width, Accum<T> scale, Accum<T>* dst) {
  for (int64_t r = 0; r < rows; ++r) {
    const T* from = src + r * stride;
    Accum<T>* to = dst + r * width;
#pragma omp simd
    for (int64_t c = 0; c < cols; ++c) to[c] = scale * load(from, c);
    for (int64_t c = cols; c < width; ++c) to[c] = 0;
  }
  std::fill(dst + rows * width, dst + round_up(rows, kLanes<Accum<T>>) * width, Accum<T>(0));
}

// dst (width, kTileQueries) = the transpose of src (rows, width), which load_rows filled.
template <class A>
void transpose(const A* src, int64_t rows, int64_t width, A* dst) {
  for (int64_t r = 0; r < rows; r += kLanes<A>)
    for (int64_t c = 0; c < width; c += kLanes<A>)
      transpose_square(src + r * width + c, width, dst + c * kTileQueries + r, kTileQueries);
}

// Calls f(key, query, visible) for every element of a transposed tile in vectors of queries: those that hold a visible
// element, and some hidden ones beside it. f must be branch-free: its loop is vectorised.
template <class A, class F>
inline void for_each_score(const TilePair& tile, F&& f) {
  for (int64_t j = 0; j < tile.keys; ++j) {
    int64_t first = tile.first_query(j);
    for (int64_t i = round_down(first, kLanes<A>); i < tile.queries; i += kLanes<A>) {
      int hidden = static_cast<int>(std::max<int64_t>(first - i, 0));
#pragma omp simd
      for (int lane = 0; lane < kLanes<A>; ++lane) f(j, i + lane, lane >= hidden);
    }
  }
}

// Zeroes the vectors of queries that for_each_score leaves out.
template <class A>
inline void clear_hidden(const TilePair& tile, A* st) {
  for (int64_t j = 0; j < tile.keys; ++j)
    std::fill_n(st + j * kTileQueries, round_down(tile.first_query(j), kLanes<A>), A(0));
}

// st (keys, kTileQueries) = rows (keys, width) times columns (head_dim, kTileQueries), where a key is visible to a
// query; other elements are written or not.
template <class A>
void transposed_scores(const TilePair& tile, int64_t head_dim, const A* rows, int64_t width, const A* columns, A* st) {
  int64_t padded = round_up(tile.queries, kLanes<A>);
  for (int64_t j = 0; j < tile.keys; j += kTileRows) {
    int64_t i = round_down(tile.first_query(j), kLanes<A>);
    multiply(std::min<int64_t>(kTileRows, tile.keys - j), padded - i, head_dim, Strided<A>{rows + j * width, width, 1},
             columns + i, kTileQueries, st + j * kTileQueries + i, kTileQueries, false);
  }
}

// out (queries, width) = or += the transpose of pt (keys, kTileQueries) times rows (keys, width); pt is zero where a
// key is not visible to a query.
template <class A>
void sum_over_keys(const TilePair& tile, const A* pt, const A* rows, int64_t width, A* out, bool accumulate) {
  for (int64_t i = 0; i < tile.queries; i += kTileRows) {
    int64_t count = std::min<int64_t>(kTileRows, tile.queries - i);
    multiply(count, width, tile.key_end(i + count - 1), Strided<A>{pt + i, 1, kTileQueries}, rows, width,
             out + i * width, width, accumulate);
  }
}

// out (keys, width) += pt (keys, kTileQueries) times rows (queries, width); pt as above.
template <class A>
void sum_over_queries(const TilePair& tile, const A* pt, const A* rows, int64_t width, A* out) {
  for (int64_t j = 0; j < tile.keys; j += kTileRows) {
    int64_t i = tile.first_query(j);
    multiply(std::min<int64_t>(kTileRows, tile.keys - j), width, tile.queries - i,
             Strided<A>{pt + j * kTileQueries + i, kTileQueries, 1}, rows + i * width, width, out + j * width, width,
             true);
  }
}

}  // namespace xce::cpu

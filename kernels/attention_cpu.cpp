// One unit of work is a tile of queries of one head (forward) or one key/value head (backward), so that no two threads
// write the same values and each sum has one order. Where that gives backward too few units for its threads, it is
// split into tiles and computes the probabilities twice. Units are handed out as threads become free: their costs
// differ, the bits do not.
#include "kernels/attention.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>

#include "kernels/base/check.h"
#include "kernels/base/workspace.h"
#include "kernels/cpu/attention_tile.h"
#include "kernels/cpu/parallel.h"

namespace xce {
namespace {

using cpu::kTileKeys;
using cpu::kTileQueries;
using cpu::TilePair;

// Calls f(tile) for every tile of keys that some query of [query0, query0 + queries) sees, first keys first.
template <class F>
void for_each_key_tile(int64_t query0, int64_t queries, F&& f) {
  for (int64_t key0 = 0; key0 < query0 + queries; key0 += kTileKeys)
    f(TilePair{query0, queries, key0, std::min(kTileKeys, query0 + queries - key0)});
}

// Calls f(unit, thread) for every unit of [0, count), each on whichever thread is free.
template <class F>
void for_each_unit(const CpuExec& exec, int64_t count, F&& f) {
  if (count == 0) return;
  std::atomic<int64_t> next{0};
  auto work = [&](int thread) {
    for (int64_t unit; (unit = next.fetch_add(1, std::memory_order_relaxed)) < count;) f(unit, thread);
  };
  if (count == 1 || exec.pool->size() == 1) return work(0);
  exec.pool->run(work);
}

template <class T, class Args>
const T* head_rows(const void* base, const Args& g, int64_t b, int64_t t, int64_t head) {
  return static_cast<const T*>(base) + (b * g.seq_len + t) * g.qkv_stride + head * g.head_dim;
}
// Offset of row (b, t) of head in o and d_o.
template <class Args>
int64_t o_offset(const Args& g, int64_t b, int64_t t, int64_t head) {
  return ((b * g.seq_len + t) * g.heads + head) * g.head_dim;
}
template <class Args>
int64_t lse_offset(const Args& g, int64_t b, int64_t head) {
  return (b * g.heads + head) * g.seq_len;
}

// One thread's scratch; `width` is head_dim rounded up to whole vectors.
template <class A>
struct ForwardScratch {
  A *q, *qt, *k, *v, *st, *o, *max, *new_max, *sum;
  int64_t width;

  ForwardScratch(Carver& carver, int64_t head_dim) : width(cpu::round_up(head_dim, cpu::kLanes<A>)) {
    q = carver.take<A>(kTileQueries * width);
    qt = carver.take<A>(kTileQueries * width);
    k = carver.take<A>(kTileKeys * width);
    v = carver.take<A>(kTileKeys * width);
    st = carver.take<A>(kTileKeys * kTileQueries);
    o = carver.take<A>(kTileQueries * width);
    max = carver.take<A>(kTileQueries);
    new_max = carver.take<A>(kTileQueries);
    sum = carver.take<A>(kTileQueries);
  }
};

// Scores to exp(score - running maximum), zero where hidden; running maximum, sum and the output so far follow.
template <class A>
void softmax_tile(const TilePair& tile, const ForwardScratch<A>& s) {
  A *max = s.max, *new_max = s.new_max, *sum = s.sum, *st = s.st;
  std::copy(max, max + kTileQueries, new_max);
  cpu::for_each_score<A>(tile, [=](int64_t j, int64_t i, bool visible) {
    A score = visible ? st[j * kTileQueries + i] : -std::numeric_limits<A>::infinity();
    new_max[i] = score > new_max[i] ? score : new_max[i];
  });
#pragma omp simd
  for (int64_t i = 0; i < kTileQueries; ++i) {
    A correction = cpu::exp(max[i] - new_max[i]);
    sum[i] *= correction;
    max[i] = new_max[i];
    new_max[i] = correction;
  }
  if (tile.key0 > 0)
    for (int64_t i = 0; i < tile.queries; ++i)
      for (int64_t d = 0; d < s.width; ++d) s.o[i * s.width + d] *= new_max[i];
  cpu::clear_hidden(tile, st);
  cpu::for_each_score<A>(tile, [=](int64_t j, int64_t i, bool visible) {
    A p = cpu::exp(st[j * kTileQueries + i] - max[i]);
    p = visible ? p : A(0);
    st[j * kTileQueries + i] = p;
    sum[i] += p;
  });
}

// One tile of queries of one head, against all keys before its end.
template <class T>
void forward_unit(const AttentionForward& g, int64_t b, int64_t head, int64_t query0,
                  const ForwardScratch<Accum<T>>& s) {
  using A = Accum<T>;
  int64_t queries = std::min(kTileQueries, g.seq_len - query0), kv_head = head / (g.heads / g.kv_heads);
  cpu::load_rows(head_rows<T>(g.q, g, b, query0, head), g.qkv_stride, queries, g.head_dim, s.width, A(g.scale), s.q);
  cpu::transpose(s.q, queries, s.width, s.qt);
  std::fill(s.max, s.max + kTileQueries, -std::numeric_limits<A>::infinity());
  std::fill(s.sum, s.sum + kTileQueries, A(0));
  for_each_key_tile(query0, queries, [&](const TilePair& tile) {
    cpu::load_rows(head_rows<T>(g.k, g, b, tile.key0, kv_head), g.qkv_stride, tile.keys, g.head_dim, s.width, A(1),
                   s.k);
    cpu::load_rows(head_rows<T>(g.v, g, b, tile.key0, kv_head), g.qkv_stride, tile.keys, g.head_dim, s.width, A(1),
                   s.v);
    cpu::transposed_scores(tile, g.head_dim, s.k, s.width, s.qt, s.st);
    softmax_tile(tile, s);
    cpu::sum_over_keys(tile, s.st, s.v, s.width, s.o, tile.key0 > 0);
  });
  for (int64_t i = 0; i < queries; ++i) {
    T* o = static_cast<T*>(g.o) + o_offset(g, b, query0 + i, head);
    A scale = A(1) / s.sum[i];
#pragma omp simd
    for (int64_t d = 0; d < g.head_dim; ++d) cpu::store(o, d, s.o[i * s.width + d] * scale);
  }
  if (!g.lse) return;
  A* lse = static_cast<A*>(g.lse) + lse_offset(g, b, head) + query0;
  for (int64_t i = 0; i < queries; ++i) lse[i] = s.max[i] + std::log(s.sum[i]);
}

// One thread's scratch; dk and dv hold the sums of `keys` keys.
template <class A>
struct BackwardScratch {
  A *q, *qt, *d_o, *d_ot, *k, *v, *pt, *dst, *dq, *dk, *dv, *delta, *lse;
  int64_t width;

  BackwardScratch(Carver& carver, int64_t head_dim, int64_t keys) : width(cpu::round_up(head_dim, cpu::kLanes<A>)) {
    for (A** rows : {&q, &qt, &d_o, &d_ot, &dq}) *rows = carver.take<A>(kTileQueries * width);
    for (A** rows : {&k, &v}) *rows = carver.take<A>(kTileKeys * width);
    for (A** scores : {&pt, &dst}) *scores = carver.take<A>(kTileKeys * kTileQueries);
    for (A** sums : {&dk, &dv}) *sums = carver.take<A>(keys * width);
    for (A** values : {&delta, &lse}) *values = carver.take<A>(kTileQueries);
  }
};

// Brings in a tile of queries: q (scaled) and d_o with their transposes, lse, and delta = the dot product of o and d_o;
// the two are zero beyond the last query, where vectors of scores reach.
template <class T>
void load_queries(const AttentionBackward& g, int64_t b, int64_t head, int64_t query0, int64_t queries,
                  const BackwardScratch<Accum<T>>& s) {
  using A = Accum<T>;
  const T* d_o = static_cast<const T*>(g.d_o) + o_offset(g, b, query0, head);
  const T* o = static_cast<const T*>(g.o) + o_offset(g, b, query0, head);
  int64_t o_stride = g.heads * g.head_dim;
  cpu::load_rows(head_rows<T>(g.q, g, b, query0, head), g.qkv_stride, queries, g.head_dim, s.width, A(g.scale), s.q);
  cpu::load_rows(d_o, o_stride, queries, g.head_dim, s.width, A(1), s.d_o);
  cpu::transpose(s.q, queries, s.width, s.qt);
  cpu::transpose(s.d_o, queries, s.width, s.d_ot);
  int64_t head_dim = g.head_dim;
  for (int64_t i = 0; i < queries; ++i) {
    const T* o_row = o + i * o_stride;
    const A* d_o_row = s.d_o + i * s.width;
    A dot = 0;
#pragma omp simd reduction(+ : dot)
    for (int64_t d = 0; d < head_dim; ++d) dot += cpu::load(o_row, d) * d_o_row[d];
    s.delta[i] = dot;
  }
  const A* lse = static_cast<const A*>(g.lse) + lse_offset(g, b, head) + query0;
  std::copy(lse, lse + queries, s.lse);
  for (A* values : {s.lse, s.delta}) std::fill(values + queries, values + kTileQueries, A(0));
}

// Brings in a tile of keys and values; pt becomes the probabilities, dst the gradient of the scaled scores, both zero
// where hidden.
template <class T>
void score_gradients(const AttentionBackward& g, int64_t b, int64_t head, const TilePair& tile,
                     const BackwardScratch<Accum<T>>& s) {
  using A = Accum<T>;
  int64_t kv_head = head / (g.heads / g.kv_heads);
  cpu::load_rows(head_rows<T>(g.k, g, b, tile.key0, kv_head), g.qkv_stride, tile.keys, g.head_dim, s.width, A(1), s.k);
  cpu::load_rows(head_rows<T>(g.v, g, b, tile.key0, kv_head), g.qkv_stride, tile.keys, g.head_dim, s.width, A(1), s.v);
  cpu::transposed_scores(tile, g.head_dim, s.k, s.width, s.qt, s.pt);
  cpu::transposed_scores(tile, g.head_dim, s.v, s.width, s.d_ot, s.dst);
  A *p = s.pt, *ds = s.dst, *lse = s.lse, *delta = s.delta;
  cpu::clear_hidden(tile, p);
  cpu::clear_hidden(tile, ds);
  cpu::for_each_score<A>(tile, [=](int64_t j, int64_t i, bool visible) {
    int64_t at = j * kTileQueries + i;
    A probability = cpu::exp(p[at] - lse[i]);
    probability = visible ? probability : A(0);
    p[at] = probability;
    ds[at] = visible ? probability * (ds[at] - delta[i]) : A(0);
  });
}

template <class T>
void store_gradient(const Accum<T>* src, int64_t width, int64_t rows, int64_t cols, Accum<T> scale, T* dst,
                    int64_t stride) {
  for (int64_t r = 0; r < rows; ++r)
#pragma omp simd
    for (int64_t c = 0; c < cols; ++c) cpu::store(dst + r * stride, c, scale * src[r * width + c]);
}

template <class T>
T* gradient_rows(void* base, const AttentionBackward& g, int64_t b, int64_t t, int64_t head) {
  return static_cast<T*>(base) + (b * g.seq_len + t) * g.dqkv_stride + head * g.head_dim;
}

// Stores the sums in s.dk and s.dv as the gradients of keys [key0, key0 + keys).
template <class T>
void store_key_gradients(const AttentionBackward& g, int64_t b, int64_t kv_head, int64_t key0, int64_t keys,
                         const BackwardScratch<Accum<T>>& s) {
  store_gradient(s.dk, s.width, keys, g.head_dim, Accum<T>(1), gradient_rows<T>(g.dk, g, b, key0, kv_head),
                 g.dqkv_stride);
  store_gradient(s.dv, s.width, keys, g.head_dim, Accum<T>(1), gradient_rows<T>(g.dv, g, b, key0, kv_head),
                 g.dqkv_stride);
}

// dq of one tile of queries; at_tile(tile) is called while the tile's probabilities and score gradients are at hand.
template <class T, class F>
void query_tile(const AttentionBackward& g, int64_t b, int64_t head, int64_t query0, const BackwardScratch<Accum<T>>& s,
                F&& at_tile) {
  using A = Accum<T>;
  int64_t queries = std::min(kTileQueries, g.seq_len - query0);
  load_queries<T>(g, b, head, query0, queries, s);
  for_each_key_tile(query0, queries, [&](const TilePair& tile) {
    score_gradients<T>(g, b, head, tile, s);
    cpu::sum_over_keys(tile, s.dst, s.k, s.width, s.dq, tile.key0 > 0);
    at_tile(tile);
  });
  store_gradient(s.dq, s.width, queries, g.head_dim, A(g.scale), gradient_rows<T>(g.dq, g, b, query0, head),
                 g.dqkv_stride);
}

// All gradients of one key/value head: its query heads one after the other, each walked by tiles of queries.
template <class T>
void backward_unit(const AttentionBackward& g, int64_t b, int64_t kv_head, const BackwardScratch<Accum<T>>& s) {
  int64_t group = g.heads / g.kv_heads;
  for (Accum<T>* sums : {s.dk, s.dv}) std::fill(sums, sums + g.seq_len * s.width, Accum<T>(0));
  for (int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head)
    for (int64_t query0 = 0; query0 < g.seq_len; query0 += kTileQueries)
      query_tile<T>(g, b, head, query0, s, [&](const TilePair& tile) {
        cpu::sum_over_queries(tile, s.pt, s.d_o, s.width, s.dv + tile.key0 * s.width);
        cpu::sum_over_queries(tile, s.dst, s.q, s.width, s.dk + tile.key0 * s.width);
      });
  store_key_gradients<T>(g, b, kv_head, 0, g.seq_len, s);
}

// dk and dv of one tile of keys alone, for the split backward.
template <class T>
void key_tile_unit(const AttentionBackward& g, int64_t b, int64_t kv_head, int64_t key0,
                   const BackwardScratch<Accum<T>>& s) {
  static_assert(kTileQueries == kTileKeys, "the first query tile that sees a key tile starts where it does");
  int64_t group = g.heads / g.kv_heads, keys = std::min(kTileKeys, g.seq_len - key0);
  for (Accum<T>* sums : {s.dk, s.dv}) std::fill(sums, sums + keys * s.width, Accum<T>(0));
  for (int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head)
    for (int64_t query0 = key0; query0 < g.seq_len; query0 += kTileQueries) {
      TilePair tile{query0, std::min(kTileQueries, g.seq_len - query0), key0, keys};
      load_queries<T>(g, b, head, query0, tile.queries, s);
      score_gradients<T>(g, b, head, tile, s);
      cpu::sum_over_queries(tile, s.pt, s.d_o, s.width, s.dv);
      cpu::sum_over_queries(tile, s.dst, s.q, s.width, s.dk);
    }
  store_key_gradients<T>(g, b, kv_head, key0, keys, s);
}

int64_t tiles_of(int64_t seq_len) {
  return (seq_len + kTileQueries - 1) / kTileQueries;
}

// Splitting costs 7 products instead of 5 and a second exp: worth it when whole heads would leave a third of the
// threads idle.
bool splits_into_tiles(const CpuExec& exec, const AttentionBackward& g) {
  int64_t units = g.batch * g.kv_heads, threads = exec.pool->size(), turns = (units + threads - 1) / threads;
  return tiles_of(g.seq_len) > 1 && 2 * turns * threads > 3 * units;
}

template <class A>
ForwardScratch<A> scratch_of(Carver& carver, const CpuExec&, const AttentionForward& g) {
  return ForwardScratch<A>(carver, g.head_dim);
}
template <class A>
BackwardScratch<A> scratch_of(Carver& carver, const CpuExec& exec, const AttentionBackward& g) {
  return BackwardScratch<A>(carver, g.head_dim, splits_into_tiles(exec, g) ? kTileKeys : g.seq_len);
}

template <class Args>
size_t thread_bytes(const CpuExec& exec, const Args& args) {
  Carver carver(nullptr);
  visit_dtype(args.dtype, [&]<class T>(std::type_identity<T>) { scratch_of<Accum<T>>(carver, exec, args); });
  return carver.used_bytes();
}

// The scratch of one thread.
template <class A, class Args>
auto scratch_at(const CpuExec& exec, const Args& g, int thread) {
  Carver carver(static_cast<char*>(g.workspace) + thread * thread_bytes(exec, g));
  return scratch_of<A>(carver, exec, g);
}

template <class T>
void forward(const CpuExec& exec, const AttentionForward& g) {
  int64_t tiles = tiles_of(g.seq_len);
  for_each_unit(exec, g.batch * g.heads * tiles, [&](int64_t unit, int thread) {
    int64_t tile = tiles - 1 - unit % tiles, head = unit / tiles % g.heads, b = unit / tiles / g.heads;
    forward_unit<T>(g, b, head, tile * kTileQueries, scratch_at<Accum<T>>(exec, g, thread));
  });
}

template <class T>
void backward_by_heads(const CpuExec& exec, const AttentionBackward& g) {
  for_each_unit(exec, g.batch * g.kv_heads, [&](int64_t unit, int thread) {
    backward_unit<T>(g, unit / g.kv_heads, unit % g.kv_heads, scratch_at<Accum<T>>(exec, g, thread));
  });
}

// The units with most to do first: early keys, then late queries.
template <class T>
void backward_by_tiles(const CpuExec& exec, const AttentionBackward& g) {
  int64_t tiles = tiles_of(g.seq_len), kv_units = g.batch * g.kv_heads, q_units = g.batch * g.heads;
  for_each_unit(exec, tiles * (kv_units + q_units), [&](int64_t unit, int thread) {
    auto s = scratch_at<Accum<T>>(exec, g, thread);
    if (unit < tiles * kv_units) {
      int64_t b = unit % kv_units / g.kv_heads, kv_head = unit % g.kv_heads;
      key_tile_unit<T>(g, b, kv_head, unit / kv_units * kTileKeys, s);
    } else {
      unit -= tiles * kv_units;
      int64_t b = unit % q_units / g.heads, head = unit % g.heads;
      query_tile<T>(g, b, head, (tiles - 1 - unit / q_units) * kTileQueries, s, [](const TilePair&) {});
    }
  });
}

}  // namespace

size_t workspace_bytes(const CpuExec& exec, const AttentionForward& args) {
  check_sizes(args);
  return thread_bytes(exec, args) * exec.pool->size();
}
size_t workspace_bytes(const CpuExec& exec, const AttentionBackward& args) {
  check_sizes(args);
  return thread_bytes(exec, args) * exec.pool->size();
}

void launch(const CpuExec& exec, const AttentionForward& args) {
  check_args(args, workspace_bytes(exec, args));
  if (args.batch == 0 || args.seq_len == 0) return;
  visit_dtype(args.dtype, [&]<class T>(std::type_identity<T>) { forward<T>(exec, args); });
}

void launch(const CpuExec& exec, const AttentionBackward& args) {
  check_args(args, workspace_bytes(exec, args));
  if (args.batch == 0 || args.seq_len == 0) return;
  visit_dtype(args.dtype, [&]<class T>(std::type_identity<T>) {
    if (splits_into_tiles(exec, args))
      backward_by_tiles<T>(exec, args);
    else
      backward_by_heads<T>(exec, args);
  });
}

}  // namespace xce

// One unit of work is a tile of queries of one head (forward) or one key/value head (backward), so that no two threads
// write the same values and each sum has one order. Units are handed out as threads become free: their costs differ,
// the bits do not.
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

// All gradients of one key/value head: its query heads one after the other, each walked by tiles of queries.
template <class T>
void backward_unit(const AttentionBackward& g, int64_t b, int64_t kv_head, const BackwardScratch<Accum<T>>& s) {
  using A = Accum<T>;
  int64_t group = g.heads / g.kv_heads, width = s.width;
  std::fill(s.dk, s.dk + g.seq_len * width, A(0));
  std::fill(s.dv, s.dv + g.seq_len * width, A(0));
  auto gradient_rows = [&](void* base, int64_t t, int64_t head) {
    return static_cast<T*>(base) + (b * g.seq_len + t) * g.dqkv_stride + head * g.head_dim;
  };
  for (int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head)
    for (int64_t query0 = 0; query0 < g.seq_len; query0 += kTileQueries) {
      int64_t queries = std::min(kTileQueries, g.seq_len - query0);
      load_queries<T>(g, b, head, query0, queries, s);
      for_each_key_tile(query0, queries, [&](const TilePair& tile) {
        score_gradients<T>(g, b, head, tile, s);
        cpu::sum_over_queries(tile, s.pt, s.d_o, width, s.dv + tile.key0 * width);
        cpu::sum_over_queries(tile, s.dst, s.q, width, s.dk + tile.key0 * width);
        cpu::sum_over_keys(tile, s.dst, s.k, width, s.dq, tile.key0 > 0);
      });
      store_gradient(s.dq, width, queries, g.head_dim, A(g.scale), gradient_rows(g.dq, query0, head), g.dqkv_stride);
    }
  store_gradient(s.dk, width, g.seq_len, g.head_dim, A(1), gradient_rows(g.dk, 0, kv_head), g.dqkv_stride);
  store_gradient(s.dv, width, g.seq_len, g.head_dim, A(1), gradient_rows(g.dv, 0, kv_head), g.dqkv_stride);
}

template <class A>
ForwardScratch<A> scratch_of(Carver& carver, const AttentionForward& g) {
  return ForwardScratch<A>(carver, g.head_dim);
}
template <class A>
BackwardScratch<A> scratch_of(Carver& carver, const AttentionBackward& g) {
  return BackwardScratch<A>(carver, g.head_dim, g.seq_len);
}

template <class Args>
size_t thread_bytes(const Args& args) {
  Carver carver(nullptr);
  visit_dtype(args.dtype, [&]<class T>(std::type_identity<T>) { scratch_of<Accum<T>>(carver, args); });
  return carver.used_bytes();
}

template <class Args>
void check_sizes(const Args& g, const char* name) {
  XCE_CHECK(g.batch >= 0, str(name, ".batch >= 0"), g.batch);
  XCE_CHECK(g.seq_len >= 0, str(name, ".seq_len >= 0"), g.seq_len);
  XCE_CHECK(g.head_dim >= 1, str(name, ".head_dim >= 1"), g.head_dim);
  XCE_CHECK(g.kv_heads >= 1, str(name, ".kv_heads >= 1"), g.kv_heads);
  XCE_CHECK(g.heads >= 1 && g.heads % g.kv_heads == 0, str(name, ".heads a multiple of kv_heads ", g.kv_heads),
            g.heads);
  XCE_CHECK(g.qkv_stride >= g.heads * g.head_dim, str(name, ".qkv_stride >= heads * head_dim"), g.qkv_stride);
  XCE_CHECK(std::isfinite(g.scale), str(name, ".scale finite"), g.scale);
}

template <class Args>
void check_arrays(const CpuExec& exec, const Args& g, const char* name) {
  XCE_CHECK(g.q, str(name, ".q not null"), "null");
  XCE_CHECK(g.k, str(name, ".k not null"), "null");
  XCE_CHECK(g.v, str(name, ".v not null"), "null");
  XCE_CHECK(g.o, str(name, ".o not null"), "null");
  XCE_CHECK(g.workspace, str(name, ".workspace not null"), "null");
  size_t need = workspace_bytes(exec, g);
  XCE_CHECK(g.workspace_size_bytes >= need, str(name, ".workspace_size_bytes >= ", need), g.workspace_size_bytes);
}

// fn(scratch) with the scratch of `thread`.
template <class A, class Args, class F>
void with_scratch(const Args& g, int thread, F&& fn) {
  Carver carver(static_cast<char*>(g.workspace) + thread * thread_bytes(g));
  fn(scratch_of<A>(carver, g));
}

}  // namespace

size_t workspace_bytes(const CpuExec& exec, const AttentionForward& args) {
  check_sizes(args, "AttentionForward");
  return thread_bytes(args) * exec.pool->size();
}
size_t workspace_bytes(const CpuExec& exec, const AttentionBackward& args) {
  check_sizes(args, "AttentionBackward");
  return thread_bytes(args) * exec.pool->size();
}

void launch(const CpuExec& exec, const AttentionForward& args) {
  check_sizes(args, "AttentionForward");
  if (args.batch == 0 || args.seq_len == 0) return;
  check_arrays(exec, args, "AttentionForward");
  int64_t tiles = (args.seq_len + kTileQueries - 1) / kTileQueries;
  visit_dtype(args.dtype, [&]<class T>(std::type_identity<T>) {
    for_each_unit(exec, args.batch * args.heads * tiles, [&](int64_t unit, int thread) {
      int64_t tile = tiles - 1 - unit % tiles, head = unit / tiles % args.heads, b = unit / tiles / args.heads;
      with_scratch<Accum<T>>(args, thread,
                             [&](const auto& s) { forward_unit<T>(args, b, head, tile * kTileQueries, s); });
    });
  });
}

void launch(const CpuExec& exec, const AttentionBackward& args) {
  check_sizes(args, "AttentionBackward");
  XCE_CHECK(args.dqkv_stride >= args.heads * args.head_dim, "AttentionBackward.dqkv_stride >= heads * head_dim",
            args.dqkv_stride);
  if (args.batch == 0 || args.seq_len == 0) return;
  check_arrays(exec, args, "AttentionBackward");
  XCE_CHECK(args.lse, "AttentionBackward.lse not null", "null");
  XCE_CHECK(args.d_o, "AttentionBackward.d_o not null", "null");
  XCE_CHECK(args.dq, "AttentionBackward.dq not null", "null");
  XCE_CHECK(args.dk, "AttentionBackward.dk not null", "null");
  XCE_CHECK(args.dv, "AttentionBackward.dv not null", "null");
  visit_dtype(args.dtype, [&]<class T>(std::type_identity<T>) {
    for_each_unit(exec, args.batch * args.kv_heads, [&](int64_t unit, int thread) {
      with_scratch<Accum<T>>(
          args, thread, [&](const auto& s) { backward_unit<T>(args, unit / args.kv_heads, unit % args.kv_heads, s); });
    });
  });
}

}  // namespace xce

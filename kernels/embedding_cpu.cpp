// Forward copies rows. Backward shares out columns, not tokens: every thread walks all rows in order over its own
// columns, so a text's frequent tokens unbalance nothing and each sum has one order.
#include "kernels/embedding.h"

#include <algorithm>
#include <cstring>

#include "kernels/cpu/parallel.h"
#include "kernels/cpu/vec.h"

namespace xce {
namespace {

constexpr int64_t kColumns = 16;  // columns that stay with one thread: a cache line of fp32

template <class T>
void add_columns(const EmbeddingBackward& args, Range columns) {
  using A = Accum<T>;
  const T* dy = static_cast<const T*>(args.dy);
  A* dweight = static_cast<A*>(args.dweight);
  const int64_t width = columns.end - columns.begin;
  if (!args.accumulate)
    for (int64_t t = 0; t < args.vocab; ++t) std::fill_n(dweight + t * args.hidden + columns.begin, width, A(0));
  for (int64_t r = 0; r < args.rows; ++r) {
    int64_t token = args.tokens[r];
    if (token < 0 || token >= args.vocab) continue;
    const T* from = dy + r * args.hidden + columns.begin;
    A* to = dweight + token * args.hidden + columns.begin;
#pragma omp simd
    for (int64_t i = 0; i < width; ++i) to[i] += cpu::load(from, i);
  }
}

}  // namespace

void check_args(const EmbeddingForward& args) {
  XCE_CHECK(args.rows >= 0, "EmbeddingForward.rows >= 0", args.rows);
  XCE_CHECK(args.vocab >= 1, "EmbeddingForward.vocab >= 1", args.vocab);
  XCE_CHECK(args.hidden >= 1, "EmbeddingForward.hidden >= 1", args.hidden);
  XCE_CHECK(args.rows == 0 || (args.weight && args.tokens && args.y),
            "EmbeddingForward.weight, .tokens and .y not null", "null");
}

void check_args(const EmbeddingBackward& args) {
  XCE_CHECK(args.rows >= 0, "EmbeddingBackward.rows >= 0", args.rows);
  XCE_CHECK(args.vocab >= 1, "EmbeddingBackward.vocab >= 1", args.vocab);
  XCE_CHECK(args.hidden >= 1, "EmbeddingBackward.hidden >= 1", args.hidden);
  XCE_CHECK(args.dweight, "EmbeddingBackward.dweight not null", "null");
  XCE_CHECK(args.rows == 0 || (args.dy && args.tokens), "EmbeddingBackward.dy and .tokens not null", "null");
}

void launch(const CpuExec& exec, const EmbeddingForward& args) {
  check_args(args);
  const size_t row_bytes = args.hidden * size_of(args.dtype);
  const char* weight = static_cast<const char*>(args.weight);
  char* y = static_cast<char*>(args.y);
  parallel_for(exec, args.rows, cpu::row_grain(args.hidden), [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r) {
      int64_t token = args.tokens[r];
      if (token >= 0 && token < args.vocab)
        std::memcpy(y + r * row_bytes, weight + token * row_bytes, row_bytes);
      else
        std::memset(y + r * row_bytes, 0, row_bytes);
    }
  });
}

void launch(const CpuExec& exec, const EmbeddingBackward& args) {
  check_args(args);
  const int64_t work_rows = args.rows + (args.accumulate ? 0 : args.vocab);
  const int64_t blocks = (args.hidden + kColumns - 1) / kColumns;
  visit_dtype(args.dtype, [&]<class T>(std::type_identity<T>) {
    parallel_for(exec, blocks, cpu::row_grain(work_rows * kColumns), [&](int64_t begin, int64_t end, int) {
      add_columns<T>(args, {begin * kColumns, std::min(end * kColumns, args.hidden)});
    });
  });
}

}  // namespace xce

// Each of the three products is one GEMM per thread over a strip of the larger side of its result. fp32 and fp64
// multiply the caller's arrays in place; bf16 is widened tile by tile in the workspace, summed in fp32 and rounded
// once.
#include <algorithm>
#include <limits>

#include "kernels/base/check.h"
#include "kernels/base/workspace.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/vec.h"
#include "kernels/linear.h"

namespace xce {
namespace {

using cpu::Trans;

constexpr int64_t kMaxSide = int64_t{1} << 30;    // of one GEMM call: OpenBLAS counts in 32 bits
constexpr int64_t kTile = 256, kTileDepth = 512;  // of bf16: two operands and a result in fp32, 1.25 MiB, stay in L2
constexpr int64_t kStrip = 16;                    // strips are multiples of the GEMM's register block
constexpr double kSerialProducts = 1 << 17;       // below, waking a thread costs more than it saves

// C (m x n) = op(A) op(B), plus D if there is one (laid out as C, and possibly C itself); sizes in elements, row-major.
template <class T, class C>
struct Product {
  Trans trans_a, trans_b;
  int64_t m, n, k;
  const T* a;
  int64_t lda;
  const T* b;
  int64_t ldb;
  C* c;
  int64_t ldc;
  const C* d;

  const T* a_at(int64_t i, int64_t l) const { return trans_a == Trans::kYes ? a + l * lda + i : a + i * lda + l; }
  const T* b_at(int64_t l, int64_t j) const { return trans_b == Trans::kYes ? b + j * ldb + l : b + l * ldb + j; }
};

struct Block {
  Range rows, cols;
};

// The part of the result that `thread` of `threads` computes: a strip of the longer side, so that no two threads share
// a value.
template <class T, class C>
Block strip(const Product<T, C>& p, int threads, int thread) {
  bool by_rows = p.m >= p.n;
  int64_t side = by_rows ? p.m : p.n;
  Range units = partition((side + kStrip - 1) / kStrip, threads, thread);
  Range range{std::min(units.begin * kStrip, side), std::min(units.end * kStrip, side)};
  return by_rows ? Block{range, {0, p.n}} : Block{{0, p.m}, range};
}

// Calls f(begin, size) for consecutive pieces of [begin, end), none longer than `limit`.
template <class F>
void pieces(Range range, int64_t limit, F&& f) {
  for (int64_t at = range.begin; at < range.end; at += limit) f(at, std::min(limit, range.end - at));
}

// Scratch of one thread, in floats; only bf16 uses it.
constexpr int64_t kScratch = 2 * kTile * kTileDepth + kTile * kTile;

template <class T>
void compute(const Product<T, T>& p, const Block& block, void*) {
  pieces(block.rows, kMaxSide, [&](int64_t i, int64_t m) {
    pieces(block.cols, kMaxSide, [&](int64_t j, int64_t n) {
      if (p.d && p.d != p.c)
        for (int64_t r = i; r < i + m; ++r) std::copy_n(p.d + r * p.ldc + j, n, p.c + r * p.ldc + j);
      int64_t l = 0;
      do {  // at least once: with no terms the result is still set to zero
        int64_t k = std::min(kMaxSide, p.k - l);
        T beta = p.d || l > 0 ? T{1} : T{0};
        cpu::gemm(p.trans_a, p.trans_b, m, n, k, T{1}, p.a_at(i, l), p.lda, p.b_at(l, j), p.ldb, beta,
                  p.c + i * p.ldc + j, p.ldc);
        l += k;
      } while (l < p.k);
    });
  });
}

void widen(const Bf16* src, int64_t ld, int64_t rows, int64_t cols, float* dst) {
  for (int64_t r = 0; r < rows; ++r)
#pragma omp simd
    for (int64_t c = 0; c < cols; ++c) dst[r * cols + c] = cpu::load(src + r * ld, c);
}

template <class C>
void store(const float* tile, int64_t rows, int64_t cols, C* dst, const C* addend, int64_t ld) {
  for (int64_t r = 0; r < rows; ++r) {
    const float* from = tile + r * cols;
    C* to = dst + r * ld;
    const C* plus = addend ? addend + r * ld : nullptr;
#pragma omp simd
    for (int64_t c = 0; c < cols; ++c) cpu::store(to, c, (plus ? cpu::load(plus, c) : 0.0f) + from[c]);
  }
}

template <class C>
void compute(const Product<Bf16, C>& p, const Block& block, float* scratch) {
  float* a = scratch;
  float* b = a + kTile * kTileDepth;
  float* c = b + kTile * kTileDepth;
  bool ta = p.trans_a == Trans::kYes, tb = p.trans_b == Trans::kYes;
  pieces(block.rows, kTile, [&](int64_t i, int64_t m) {
    pieces(block.cols, kTile, [&](int64_t j, int64_t n) {
      if (p.k == 0) std::fill(c, c + m * n, 0.0f);
      pieces({0, p.k}, kTileDepth, [&](int64_t l, int64_t k) {
        widen(p.a_at(i, l), p.lda, ta ? k : m, ta ? m : k, a);
        widen(p.b_at(l, j), p.ldb, tb ? n : k, tb ? k : n, b);
        cpu::gemm(p.trans_a, p.trans_b, m, n, k, 1.0f, a, ta ? m : k, b, tb ? k : n, l > 0 ? 1.0f : 0.0f, c, n);
      });
      int64_t at = i * p.ldc + j;
      store(c, m, n, p.c + at, p.d ? p.d + at : nullptr, p.ldc);
    });
  });
}

// Runs the given products, each shared among all threads, with one wake-up and no barrier between them.
template <class... Products>
void compute_all(const CpuExec& exec, void* workspace, const Products&... products) {
  double work = (0.0 + ... + (static_cast<double>(products.m) * products.n * products.k));
  int threads = work < kSerialProducts ? 1 : exec.pool->size();
  auto part = [&](int thread) {
    float* scratch = workspace ? static_cast<float*>(workspace) + thread * kScratch : nullptr;
    (compute(products, strip(products, threads, thread), scratch), ...);
  };
  if (threads == 1) return part(0);
  exec.pool->run(part);
}

size_t scratch_bytes(const CpuExec& exec, DType dtype) {
  return dtype == DType::kBf16 ? static_cast<size_t>(exec.pool->size()) * kScratch * sizeof(float) : 0;
}

template <class Args>
void check_sizes(const Args& args, size_t need, const char* name) {
  constexpr int64_t kMaxLd = std::numeric_limits<int32_t>::max();
  XCE_CHECK(args.rows >= 0, str(name, ".rows >= 0"), args.rows);
  XCE_CHECK(args.in >= 1 && args.in <= kMaxLd, str(name, ".in in [1, 2^31)"), args.in);
  XCE_CHECK(args.out >= 1 && args.out <= kMaxLd, str(name, ".out in [1, 2^31)"), args.out);
  XCE_CHECK(need == 0 || args.workspace, str(name, ".workspace not null"), "null");
  XCE_CHECK(args.workspace_size_bytes >= need, str(name, ".workspace_size_bytes >= ", need), args.workspace_size_bytes);
}

template <class T>
Product<T, T> forward_product(const LinearForward& g) {
  return {Trans::kNo, Trans::kYes,
          g.rows,     g.out,
          g.in,       static_cast<const T*>(g.x),
          g.in,       static_cast<const T*>(g.weight),
          g.in,       static_cast<T*>(g.y),
          g.out,      static_cast<const T*>(g.addend)};
}
template <class T>
Product<T, T> dx_product(const LinearBackward& g) {
  return {Trans::kNo, Trans::kNo,
          g.rows,     g.in,
          g.out,      static_cast<const T*>(g.dy),
          g.out,      static_cast<const T*>(g.weight),
          g.in,       static_cast<T*>(g.dx),
          g.in,       g.accumulate_dx ? static_cast<const T*>(g.dx) : nullptr};
}
template <class T>
Product<T, Accum<T>> dweight_product(const LinearBackward& g) {
  return {Trans::kYes, Trans::kNo,
          g.out,       g.in,
          g.rows,      static_cast<const T*>(g.dy),
          g.out,       static_cast<const T*>(g.x),
          g.in,        static_cast<Accum<T>*>(g.dweight),
          g.in,        g.accumulate_dweight ? static_cast<const Accum<T>*>(g.dweight) : nullptr};
}

}  // namespace

size_t workspace_bytes(const CpuExec& exec, const LinearForward& args) {
  return scratch_bytes(exec, args.dtype);
}
size_t workspace_bytes(const CpuExec& exec, const LinearBackward& args) {
  return scratch_bytes(exec, args.dtype);
}

void check_args(const LinearForward& args, size_t needed_workspace_bytes) {
  check_sizes(args, needed_workspace_bytes, "LinearForward");
  XCE_CHECK(args.x || args.rows == 0, "LinearForward.x not null", "null");
  XCE_CHECK(args.weight || args.rows == 0, "LinearForward.weight not null", "null");
  XCE_CHECK(args.y || args.rows == 0, "LinearForward.y not null", "null");
}

void check_args(const LinearBackward& args, size_t needed_workspace_bytes) {
  check_sizes(args, needed_workspace_bytes, "LinearBackward");
  XCE_CHECK(args.dy || args.rows == 0, "LinearBackward.dy not null", "null");
  XCE_CHECK(!args.dx || args.weight, "LinearBackward.weight not null when dx is wanted", "null");
  XCE_CHECK(!args.dweight || args.x || args.rows == 0, "LinearBackward.x not null when dweight is wanted", "null");
}

void launch(const CpuExec& exec, const LinearForward& args) {
  check_args(args, workspace_bytes(exec, args));
  if (args.rows == 0) return;
  visit_dtype(args.dtype,
              [&]<class T>(std::type_identity<T>) { compute_all(exec, args.workspace, forward_product<T>(args)); });
}

void launch(const CpuExec& exec, const LinearBackward& args) {
  check_args(args, workspace_bytes(exec, args));
  visit_dtype(args.dtype, [&]<class T>(std::type_identity<T>) {
    if (args.dx && args.dweight)
      compute_all(exec, args.workspace, dx_product<T>(args), dweight_product<T>(args));
    else if (args.dx)
      compute_all(exec, args.workspace, dx_product<T>(args));
    else if (args.dweight)
      compute_all(exec, args.workspace, dweight_product<T>(args));
  });
}

}  // namespace xce

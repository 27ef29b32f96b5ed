// A thread owns whole rows; the backward keeps one partial dweight per thread and adds them in thread order.
#include "kernels/rmsnorm.h"

#include <algorithm>
#include <cmath>

#include "kernels/base/workspace.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/vec.h"

namespace xce {
namespace {

// sum of term(i) for i in [0, n), by blocks: as exact where the compiler does not vectorise the loop.
template <class A, class F>
A blocked_sum(int64_t n, F&& term) {
  constexpr int64_t kBlock = 256;
  A sum = 0;
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const int64_t end = std::min(n, begin + kBlock);
    A part = 0;
#pragma omp simd reduction(+ : part)
    for (int64_t i = begin; i < end; ++i) part += term(i);
    sum += part;
  }
  return sum;
}

template <class T>
void forward_row(const T* x, const T* weight, T* y, Accum<T>* rstd, int64_t cols, double eps) {
  using A = Accum<T>;
  const A sum = blocked_sum<A>(cols, [&](int64_t i) { return cpu::load(x, i) * cpu::load(x, i); });
  const A scale = A(1) / std::sqrt(sum / static_cast<A>(cols) + static_cast<A>(eps));
#pragma omp simd
  for (int64_t i = 0; i < cols; ++i) cpu::store(y, i, cpu::load(weight, i) * (cpu::load(x, i) * scale));
  if (rstd) *rstd = scale;
}

struct BackwardRow {
  const void *x, *weight, *dy;
  void *dx, *dweight;
  double rstd;
  int64_t cols;
};

template <class T, bool kAccumulate>
void backward_row(const BackwardRow& row) {
  using A = Accum<T>;
  const T *x = static_cast<const T*>(row.x), *weight = static_cast<const T*>(row.weight);
  const T* dy = static_cast<const T*>(row.dy);
  T* dx = static_cast<T*>(row.dx);
  A* dweight = static_cast<A*>(row.dweight);
  const A rstd = static_cast<A>(row.rstd);
  const A dot = blocked_sum<A>(
      row.cols, [&](int64_t i) { return cpu::load(weight, i) * cpu::load(dy, i) * (cpu::load(x, i) * rstd); });
  const A mean = dot / static_cast<A>(row.cols);
#pragma omp simd
  for (int64_t i = 0; i < row.cols; ++i) {
    A xhat = cpu::load(x, i) * rstd, d = cpu::load(dy, i);
    A value = rstd * (cpu::load(weight, i) * d - xhat * mean);
    if constexpr (kAccumulate) value += cpu::load(dx, i);
    cpu::store(dx, i, value);
    dweight[i] += d * xhat;
  }
}

template <class T>
void backward_rows(const RmsNormBackward& args, Range rows, Accum<T>* dweight) {
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    int64_t at = r * args.cols;
    BackwardRow row{static_cast<const T*>(args.x) + at,
                    args.weight,
                    static_cast<const T*>(args.dy) + at,
                    static_cast<T*>(args.dx) + at,
                    dweight,
                    static_cast<const Accum<T>*>(args.rstd)[r],
                    args.cols};
    args.accumulate_dx ? backward_row<T, true>(row) : backward_row<T, false>(row);
  }
}

}  // namespace

void check_args(const RmsNormForward& args) {
  XCE_CHECK(args.rows >= 0, "RmsNormForward.rows >= 0", args.rows);
  XCE_CHECK(args.cols >= 1, "RmsNormForward.cols >= 1", args.cols);
  XCE_CHECK(args.rows == 0 || (args.x && args.weight && args.y), "RmsNormForward.x, .weight and .y not null", "null");
}

void check_args(const RmsNormBackward& args, size_t needed_workspace_bytes) {
  XCE_CHECK(args.rows >= 0, "RmsNormBackward.rows >= 0", args.rows);
  XCE_CHECK(args.cols >= 1, "RmsNormBackward.cols >= 1", args.cols);
  XCE_CHECK(args.dweight, "RmsNormBackward.dweight not null", "null");
  XCE_CHECK(args.workspace, "RmsNormBackward.workspace not null", "null");
  XCE_CHECK(args.workspace_size_bytes >= needed_workspace_bytes,
            str("RmsNormBackward.workspace_size_bytes >= ", needed_workspace_bytes), args.workspace_size_bytes);
  XCE_CHECK(args.rows == 0 || (args.x && args.weight && args.rstd && args.dy && args.dx),
            "RmsNormBackward.x, .weight, .rstd, .dy and .dx not null", "null");
}

void launch(const CpuExec& exec, const RmsNormForward& args) {
  check_args(args);
  visit_dtype(args.dtype, [&]<class T>(std::type_identity<T>) {
    const T *x = static_cast<const T*>(args.x), *weight = static_cast<const T*>(args.weight);
    T* y = static_cast<T*>(args.y);
    Accum<T>* rstd = static_cast<Accum<T>*>(args.rstd);
    parallel_for(exec, args.rows, cpu::row_grain(args.cols), [&](int64_t begin, int64_t end, int) {
      for (int64_t r = begin; r < end; ++r)
        forward_row(x + r * args.cols, weight, y + r * args.cols, rstd ? rstd + r : nullptr, args.cols, args.eps);
    });
  });
}

size_t workspace_bytes(const CpuExec& exec, const RmsNormBackward& args) {
  Carver carver(nullptr);
  visit_dtype(args.dtype,
              [&]<class T>(std::type_identity<T>) { carver.take<Accum<T>>(exec.pool->size() * args.cols); });
  return carver.used_bytes();
}

void launch(const CpuExec& exec, const RmsNormBackward& args) {
  check_args(args, workspace_bytes(exec, args));
  visit_dtype(args.dtype, [&]<class T>(std::type_identity<T>) {
    using A = Accum<T>;
    const int64_t cols = args.cols;
    const int threads = exec.pool->size();
    A* partial = Carver(args.workspace).take<A>(threads * cols);
    A* dweight = static_cast<A*>(args.dweight);
    std::fill_n(partial, threads * cols, A(0));
    parallel_for(exec, args.rows, cpu::row_grain(cols), [&](int64_t begin, int64_t end, int thread) {
      backward_rows<T>(args, {begin, end}, partial + thread * cols);
    });
    parallel_for(exec, cols, cpu::row_grain(threads), [&](int64_t begin, int64_t end, int) {
      if (!args.accumulate_dweight) std::fill(dweight + begin, dweight + end, A(0));
      for (int t = 0; t < threads; ++t)
        for (int64_t i = begin; i < end; ++i) dweight[i] += partial[t * cols + i];
    });
  });
}

}  // namespace xce

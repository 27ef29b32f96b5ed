#include <cmath>

#include "kernels/linear.h"
#include "tools/bench_kernels/bench.h"

namespace xce::bench {
namespace {

// Rows and columns of results that are looked at.
constexpr int64_t kRows = 4, kCols = 48;

void forward(Bench& bench, int64_t in, int64_t out, const std::string& shape) {
  const int64_t rows = bench.shapes().rows;
  const DType dtype = bench.shapes().dtype;
  Array x, w, y;
  auto launches = bench.sets(rows * (in + out) * size_of(dtype), [&](int set) {
    x = bench.source(dtype, rows * in, 3 * set + 1);
    w = bench.source(dtype, out * in, 3 * set + 2, 1 / std::sqrt(static_cast<double>(in)));
    y = bench.output(dtype, rows * out);
    return bench.launch_of(
        bench.with_workspace(LinearForward{x.data(), w.data(), y.data(), nullptr, 0, rows, in, out, dtype}));
  });
  auto error = [=] {
    Comparison comparison;
    for (int64_t r : samples(rows, kRows)) {
      std::vector<double> got = y.read(r * out, out);
      for (int64_t o : samples(out, kCols)) {
        double want = 0;
        for (int64_t i = 0; i < in; ++i) want += x[r * in + i] * w[o * in + i];
        comparison.add(got[o], want);
      }
    }
    return comparison.error();
  };
  bench.run(
      {"linear forward", shape, dtype, Bound::kProduct, 2.0 * rows * in * out, launches, error, tolerance_of(dtype)});
}

void dx(Bench& bench, int64_t in, int64_t out, const std::string& shape) {
  const int64_t rows = bench.shapes().rows;
  const DType dtype = bench.shapes().dtype;
  Array dy, w, dx;
  auto launches = bench.sets(rows * (in + out) * size_of(dtype), [&](int set) {
    dy = bench.source(dtype, rows * out, 3 * set + 1);
    w = bench.source(dtype, out * in, 3 * set + 2, 1 / std::sqrt(static_cast<double>(out)));
    dx = bench.output(dtype, rows * in);
    return bench.launch_of(bench.with_workspace(
        LinearBackward{nullptr, w.data(), dy.data(), dx.data(), nullptr, nullptr, 0, rows, in, out, dtype}));
  });
  auto error = [=] {
    Comparison comparison;
    for (int64_t r : samples(rows, kRows)) {
      std::vector<double> got = dx.read(r * in, in);
      for (int64_t i : samples(in, kCols)) {
        double want = 0;
        for (int64_t o = 0; o < out; ++o) want += dy[r * out + o] * w[o * in + i];
        comparison.add(got[i], want);
      }
    }
    return comparison.error();
  };
  bench.run({"linear dx", shape, dtype, Bound::kProduct, 2.0 * rows * in * out, launches, error, tolerance_of(dtype)});
}

// Added to what is there, as every micro-batch but the first does.
void dweight(Bench& bench, int64_t in, int64_t out, const std::string& shape) {
  const int64_t rows = bench.shapes().rows;
  const DType dtype = bench.shapes().dtype;
  const DType accum = accum_dtype(dtype);
  Array x, dy, dw;
  auto launches = bench.sets(rows * (in + out) * size_of(dtype), [&](int set) {
    x = bench.source(dtype, rows * in, 3 * set + 1);
    dy = bench.source(dtype, rows * out, 3 * set + 2);
    dw = bench.source(accum, out * in, 3 * set + 3, 10);
    LinearBackward args{x.data(), nullptr, dy.data(), nullptr, dw.data(), nullptr, 0, rows, in, out, dtype};
    args.accumulate_dweight = true;
    return bench.launch_of(bench.with_workspace(args));
  });
  auto error = [=] {
    Comparison comparison;
    for (int64_t o : samples(out, kRows)) {
      std::vector<double> got = dw.read(o * in, in);
      for (int64_t i : samples(in, kCols)) {
        double want = dw[o * in + i];
        for (int64_t r = 0; r < rows; ++r) want += dy[r * out + o] * x[r * in + i];
        comparison.add(got[i], want);
      }
    }
    return comparison.error();
  };
  bench.run({"linear dweight, added", shape, dtype, Bound::kProduct, 2.0 * rows * in * out, launches, error, 1e-4});
}

}  // namespace

void linear_jobs(Bench& bench) {
  for (auto [in, out] : bench.shapes().linears) {
    const std::string shape = str(bench.shapes().rows, " x ", in, " -> ", out);
    if (bench.wants("linear forward")) forward(bench, in, out, shape);
    if (bench.wants("linear dx")) dx(bench, in, out, shape);
    if (bench.wants("linear dweight, added")) dweight(bench, in, out, shape);
  }
}

}  // namespace xce::bench

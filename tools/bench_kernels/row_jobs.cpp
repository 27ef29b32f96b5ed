// Ops that work row by row or element by element: their ceiling is the copy.
#include <cmath>

#include "kernels/elementwise.h"
#include "kernels/rmsnorm.h"
#include "kernels/rope.h"
#include "kernels/swiglu.h"
#include "tools/bench_kernels/bench.h"

namespace xce::bench {
namespace {

constexpr int64_t kRows = 5;
constexpr double kEps = 1e-5;

void rmsnorm_forward(Bench& bench, int64_t rows, int64_t cols, DType dtype) {
  const int64_t n = rows * cols, bytes = 2 * n * size_of(dtype);
  Array x, w, y;
  auto launches = bench.sets(bytes, [&](int set) {
    x = bench.source(dtype, n, 2 * set + 1), w = bench.source(dtype, cols, 2 * set + 2), y = bench.output(dtype, n);
    Array rstd = bench.output(accum_dtype(dtype), rows);
    return bench.launch_of(RmsNormForward{x.data(), w.data(), y.data(), rstd.data(), rows, cols, dtype, kEps});
  });
  auto error = [=] {
    Comparison comparison;
    for (int64_t r : samples(rows, kRows)) {
      double squares = 0;
      for (int64_t i = 0; i < cols; ++i) squares += x[r * cols + i] * x[r * cols + i];
      const double rstd = 1 / std::sqrt(squares / cols + kEps);
      std::vector<double> got = y.read(r * cols, cols);
      for (int64_t i = 0; i < cols; ++i) comparison.add(got[i], x[r * cols + i] * rstd * w[i]);
    }
    return comparison.error();
  };
  bench.run({"rmsnorm forward", str(rows, " x ", cols), dtype, Bound::kBytes, static_cast<double>(bytes), launches,
             error, tolerance_of(dtype)});
}

void rmsnorm_backward(Bench& bench, int64_t rows, int64_t cols, DType dtype, bool add) {
  const int64_t n = rows * cols, bytes = (add ? 4 : 3) * n * size_of(dtype);
  const DType accum = accum_dtype(dtype);
  Array x, w, dy, dx, dw, rstd;
  auto launches = bench.sets(bytes, [&](int set) {
    x = bench.source(dtype, n, 4 * set + 1), w = bench.source(dtype, cols, 4 * set + 2);
    dy = bench.source(dtype, n, 4 * set + 3), dx = bench.source(dtype, n, 4 * set + 4);
    dw = bench.output(accum, cols), rstd = bench.output(accum, rows);
    Array y = bench.output(dtype, n);
    xce::run(bench.exec(), RmsNormForward{x.data(), w.data(), y.data(), rstd.data(), rows, cols, dtype, kEps});
    RmsNormBackward args{x.data(), w.data(), rstd.data(), dy.data(), dx.data(), dw.data(),
                         nullptr,  0,        rows,        cols,      dtype};
    args.accumulate_dx = add;
    return bench.launch_of(bench.with_workspace(args));
  });
  auto error = [=] {
    Comparison dx_comparison, dw_comparison;
    std::vector<double> inverse(rows);
    std::vector<double> want_dw(cols), got_dw = dw.read(0, cols);
    for (int64_t r = 0; r < rows; ++r) {
      double squares = 0;
      for (int64_t i = 0; i < cols; ++i) squares += x[r * cols + i] * x[r * cols + i];
      inverse[r] = 1 / std::sqrt(squares / cols + kEps);
      for (int64_t i : samples(cols, kRows)) want_dw[i] += dy[r * cols + i] * x[r * cols + i] * inverse[r];
    }
    for (int64_t i : samples(cols, kRows)) dw_comparison.add(got_dw[i], want_dw[i]);
    for (int64_t r : samples(rows, kRows)) {
      double mean = 0;
      for (int64_t i = 0; i < cols; ++i) mean += w[i] * dy[r * cols + i] * x[r * cols + i] * inverse[r] / cols;
      std::vector<double> got = dx.read(r * cols, cols);
      for (int64_t i = 0; i < cols; ++i) {
        const double xhat = x[r * cols + i] * inverse[r];
        dx_comparison.add(got[i], inverse[r] * (w[i] * dy[r * cols + i] - xhat * mean) + (add ? dx[r * cols + i] : 0));
      }
    }
    // dweight stays in accum_dtype: held to that bound, scaled to this one.
    return std::max(dx_comparison.error(), dw_comparison.error() / tolerance_of(accum) * tolerance_of(dtype));
  };
  bench.run({add ? "rmsnorm backward, added" : "rmsnorm backward", str(rows, " x ", cols), dtype, Bound::kBytes,
             static_cast<double>(bytes), launches, error, tolerance_of(dtype)});
}

void swiglu_forward(Bench& bench, int64_t rows, int64_t cols, DType dtype) {
  const int64_t n = rows * cols, bytes = 3 * n * size_of(dtype);
  Array gate_up, y;
  auto launches = bench.sets(bytes, [&](int set) {
    gate_up = bench.source(dtype, 2 * n, set + 1), y = bench.output(dtype, n);
    return bench.launch_of(SwigluForward{gate_up.data(), y.data(), rows, cols, dtype});
  });
  auto error = [=] {
    Comparison comparison;
    for (int64_t r : samples(rows, kRows)) {
      std::vector<double> got = y.read(r * cols, cols);
      for (int64_t i = 0; i < cols; ++i) {
        const double gate = gate_up[r * 2 * cols + i], up = gate_up[r * 2 * cols + cols + i];
        comparison.add(got[i], gate / (1 + std::exp(-gate)) * up);
      }
    }
    return comparison.error();
  };
  bench.run({"swiglu forward", str(rows, " x ", cols), dtype, Bound::kBytes, static_cast<double>(bytes), launches,
             error, tolerance_of(dtype)});
}

void swiglu_backward(Bench& bench, int64_t rows, int64_t cols, DType dtype) {
  const int64_t n = rows * cols, bytes = 6 * n * size_of(dtype);
  Array gate_up, dy, dgate_up, y;
  auto launches = bench.sets(bytes, [&](int set) {
    gate_up = bench.source(dtype, 2 * n, 2 * set + 1), dy = bench.source(dtype, n, 2 * set + 2);
    dgate_up = bench.output(dtype, 2 * n), y = bench.output(dtype, n);
    return bench.launch_of(SwigluBackward{gate_up.data(), dy.data(), dgate_up.data(), rows, cols, dtype, y.data()});
  });
  auto error = [=] {
    Comparison comparison;
    for (int64_t r : samples(rows, kRows)) {
      std::vector<double> got = dgate_up.read(r * 2 * cols, 2 * cols), got_y = y.read(r * cols, cols);
      for (int64_t i = 0; i < cols; ++i) {
        const double gate = gate_up[r * 2 * cols + i], up = gate_up[r * 2 * cols + cols + i], d = dy[r * cols + i];
        const double sigmoid = 1 / (1 + std::exp(-gate));
        comparison.add(got[i], d * up * sigmoid * (1 + gate * (1 - sigmoid)));
        comparison.add(got[cols + i], d * gate * sigmoid);
        comparison.add(got_y[i], gate * sigmoid * up);
      }
    }
    return comparison.error();
  };
  bench.run({"swiglu backward", str(rows, " x ", cols), dtype, Bound::kBytes, static_cast<double>(bytes), launches,
             error, tolerance_of(dtype)});
}

// Query and key heads in place in rows of a fused projection, values beside them untouched.
void rope(Bench& bench) {
  const Shapes& s = bench.shapes();
  const int64_t heads = s.heads + s.kv_heads, dim = s.head_dim, stride = (s.heads + 2 * s.kv_heads) * dim;
  const int64_t rows = s.rows, seq_len = s.seq_len, bytes = 2 * rows * heads * dim * size_of(s.dtype);
  const DType dtype = s.dtype, accum = accum_dtype(dtype);
  const std::vector<double> angles = rope_table(seq_len, dim, 10000, {});
  std::vector<float> table_values(angles.begin(), angles.end());
  Array x, table = bench.output(accum, seq_len * dim);
  bench.device().write(table.data(), table_values.data(), table.size_bytes());
  auto launches = bench.sets(bytes, [&](int set) {
    x = bench.source(dtype, rows * stride, set + 1);
    return bench.launch_of(Rope{x.data(), stride, table.data(), rows, seq_len, heads, dim, dtype});
  });
  auto error = [=] {
    Comparison comparison;
    for (int64_t r : samples(rows, kRows)) {
      std::vector<double> got = x.read(r * stride, stride);
      for (int64_t i = heads * dim; i < stride; ++i) comparison.add(got[i], x[r * stride + i]);
      for (int64_t h = 0; h < heads; ++h)
        for (int64_t i = 0; i < dim / 2; ++i) {
          const double angle = (r % seq_len) * std::pow(10000.0, -2.0 * i / dim);
          const double a = x[r * stride + h * dim + i], b = x[r * stride + h * dim + dim / 2 + i];
          comparison.add(got[h * dim + i], a * std::cos(angle) - b * std::sin(angle));
          comparison.add(got[h * dim + dim / 2 + i], b * std::cos(angle) + a * std::sin(angle));
        }
    }
    return comparison.error();
  };
  bench.run({"rope", str(rows, " x ", heads, " x ", dim), dtype, Bound::kBytes, static_cast<double>(bytes), launches,
             error, tolerance_of(dtype)});
}

void add(Bench& bench, int64_t n, DType dtype) {
  const int64_t bytes = 3 * n * size_of(dtype), count = std::min<int64_t>(n, 100003);
  Array a, b, y;
  auto launches = bench.sets(bytes, [&](int set) {
    a = bench.source(dtype, n, 2 * set + 1), b = bench.source(dtype, n, 2 * set + 2), y = bench.output(dtype, n);
    return bench.launch_of(Add{a.data(), b.data(), y.data(), n, dtype});
  });
  auto error = [=] {
    Comparison comparison;
    for (int64_t begin : {int64_t{0}, n - count}) {
      std::vector<double> got = y.read(begin, count);
      for (int64_t i = 0; i < count; ++i) comparison.add(got[i], a[begin + i] + b[begin + i]);
    }
    return comparison.error();
  };
  bench.run({"add", str(n), dtype, Bound::kBytes, static_cast<double>(bytes), launches, error, tolerance_of(dtype)});
}

void convert(Bench& bench, int64_t n) {
  const int64_t bytes = 6 * n, count = std::min<int64_t>(n, 100003);
  Array x, y;
  auto launches = bench.sets(bytes, [&](int set) {
    x = bench.source(DType::kF32, n, set + 1), y = bench.output(DType::kBf16, n);
    return bench.launch_of(Convert{x.data(), y.data(), n, DType::kF32, DType::kBf16});
  });
  auto error = [=] {
    Comparison comparison;
    for (int64_t begin : {int64_t{0}, n - count}) {
      std::vector<double> got = y.read(begin, count);
      for (int64_t i = 0; i < count; ++i) comparison.add(got[i], x[begin + i]);
    }
    return comparison.error();
  };
  bench.run({"convert to bf16", str(n), DType::kF32, Bound::kBytes, static_cast<double>(bytes), launches, error,
             tolerance_of(DType::kBf16)});
}

// The device's own copy of as many bytes as rmsnorm moves: the start and the end of a launch weigh more here than in
// the ceiling's large one.
void copy(Bench& bench, int64_t n, DType dtype) {
  const int64_t bytes = 2 * n * size_of(dtype), count = std::min<int64_t>(n, 100003);
  Array x, y;
  auto launches = bench.sets(bytes, [&](int set) -> std::function<void()> {
    x = bench.source(dtype, n, set + 1), y = bench.output(dtype, n);
    return [&bench, x, y] { bench.device().copy(y.data(), x.data(), x.size_bytes()); };
  });
  auto error = [=] {
    Comparison comparison;
    for (int64_t begin : {int64_t{0}, n - count}) {
      std::vector<double> got = y.read(begin, count);
      for (int64_t i = 0; i < count; ++i) comparison.add(got[i], x[begin + i]);
    }
    return comparison.error();
  };
  bench.run({"copy", str(n), dtype, Bound::kBytes, static_cast<double>(bytes), launches, error, 0});
}

void fill(Bench& bench, int64_t n) {
  Array y;
  auto launches = bench.sets(4 * n, [&](int) {
    y = bench.output(DType::kF32, n);
    return bench.launch_of(Fill{y.data(), n, DType::kF32, 0.25});
  });
  const int64_t count = std::min<int64_t>(n, 100003);
  auto error = [=] {
    Comparison comparison;
    for (int64_t begin : {int64_t{0}, n - count})
      for (double got : y.read(begin, count)) comparison.add(got, 0.25);
    return comparison.error();
  };
  bench.run({"fill", str(n), DType::kF32, Bound::kBytes, 4.0 * n, launches, error, 0});
}

}  // namespace

void row_jobs(Bench& bench) {
  const Shapes& s = bench.shapes();
  if (bench.wants("rmsnorm forward")) rmsnorm_forward(bench, s.rows, s.hidden, s.dtype);
  for (bool added : {false, true})
    if (bench.wants(added ? "rmsnorm backward, added" : "rmsnorm backward"))
      rmsnorm_backward(bench, s.rows, s.hidden, s.dtype, added);
  if (bench.wants("swiglu forward")) swiglu_forward(bench, s.rows, s.ffn, s.dtype);
  if (bench.wants("swiglu backward")) swiglu_backward(bench, s.rows, s.ffn, s.dtype);
  if (bench.wants("rope")) rope(bench);
  if (bench.wants("add")) add(bench, s.rows * s.hidden, s.dtype);
  if (bench.wants("convert to bf16")) convert(bench, s.rows * s.hidden);
  if (bench.wants("copy")) copy(bench, s.rows * s.hidden, s.dtype);
  if (bench.wants("fill")) fill(bench, s.rows * s.hidden);
}

}  // namespace xce::bench

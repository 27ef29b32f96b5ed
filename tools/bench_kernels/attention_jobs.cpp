#include <algorithm>
#include <cmath>
#include <cstdio>

#include "kernels/attention.h"
#include "tools/bench_kernels/bench.h"

namespace xce::bench {
namespace {

// fp64 attention of single queries over arrays in the layout of a fused projection.
struct Reference {
  int64_t seq_len, heads, kv_heads, dim;
  double scale;
  Array qkv, d_o;

  int64_t stride() const { return (heads + 2 * kv_heads) * dim; }
  int64_t kv_head(int64_t head) const { return head / (heads / kv_heads); }
  double q(int64_t row, int64_t head, int64_t i) const { return qkv[row * stride() + head * dim + i]; }
  double k(int64_t row, int64_t kv, int64_t i) const { return qkv[row * stride() + (heads + kv) * dim + i]; }
  double v(int64_t row, int64_t kv, int64_t i) const { return qkv[row * stride() + (heads + kv_heads + kv) * dim + i]; }
  double dout(int64_t row, int64_t head, int64_t i) const { return d_o[(row * heads + head) * dim + i]; }

  // Probabilities of the query at `position` over keys 0 .. position of the sequence that begins at row `first`.
  std::vector<double> probabilities(int64_t first, int64_t position, int64_t head) const {
    std::vector<double> p(position + 1);
    for (int64_t j = 0; j <= position; ++j)
      for (int64_t i = 0; i < dim; ++i) p[j] += scale * q(first + position, head, i) * k(first + j, kv_head(head), i);
    const double most = *std::max_element(p.begin(), p.end());
    double sum = 0;
    for (double& value : p) sum += value = std::exp(value - most);
    for (double& value : p) value /= sum;
    return p;
  }
  std::vector<double> output(int64_t first, const std::vector<double>& p, int64_t head) const {
    std::vector<double> o(dim);
    for (size_t j = 0; j < p.size(); ++j)
      for (int64_t i = 0; i < dim; ++i) o[i] += p[j] * v(first + static_cast<int64_t>(j), kv_head(head), i);
    return o;
  }
  // Gradients of the scores, before the scale.
  std::vector<double> dscores(int64_t first, int64_t position, int64_t head, const std::vector<double>& p) const {
    std::vector<double> ds(p.size());
    double mean = 0;
    for (size_t j = 0; j < p.size(); ++j) {
      for (int64_t i = 0; i < dim; ++i)
        ds[j] += dout(first + position, head, i) * v(first + static_cast<int64_t>(j), kv_head(head), i);
      mean += p[j] * ds[j];
    }
    for (size_t j = 0; j < p.size(); ++j) ds[j] = p[j] * (ds[j] - mean);
    return ds;
  }
};

struct Problem {
  Reference reference;
  int64_t batch;
  DType dtype;
  Array o, lse, dqkv;

  AttentionForward forward() const {
    const Reference& r = reference;
    auto part = [&](int64_t heads) {
      return static_cast<const char*>(r.qkv.data()) + static_cast<size_t>(heads * r.dim) * size_of(dtype);
    };
    return {r.qkv.data(),
            part(r.heads),
            part(r.heads + r.kv_heads),
            r.stride(),
            o.data(),
            lse.data(),
            nullptr,
            0,
            batch,
            r.seq_len,
            r.heads,
            r.kv_heads,
            r.dim,
            dtype,
            r.scale};
  }
  AttentionBackward backward() const {
    const Reference& r = reference;
    const AttentionForward f = forward();
    auto part = [&](int64_t heads) {
      return static_cast<char*>(dqkv.data()) + static_cast<size_t>(heads * r.dim) * size_of(dtype);
    };
    return {f.q,        f.k,          f.v,         r.stride(),    o.data(),
            lse.data(), r.d_o.data(), dqkv.data(), part(r.heads), part(r.heads + r.kv_heads),
            r.stride(), nullptr,      0,           batch,         r.seq_len,
            r.heads,    r.kv_heads,   r.dim,       dtype,         r.scale};
  }
};

Problem make_problem(Bench& bench, int64_t rows, int64_t seq_len, int64_t heads, int64_t kv_heads, int64_t dim,
                     int set) {
  const DType dtype = bench.shapes().dtype;
  Problem p{{seq_len, heads, kv_heads, dim, 1 / std::sqrt(static_cast<double>(dim)), {}, {}},
            rows / seq_len,
            dtype,
            {},
            {},
            {}};
  const int64_t stride = p.reference.stride();
  p.reference.qkv = bench.source(dtype, rows * stride, 2 * set + 1);
  p.reference.d_o = bench.source(dtype, rows * heads * dim, 2 * set + 2);
  p.o = bench.output(dtype, rows * heads * dim), p.lse = bench.output(accum_dtype(dtype), rows * heads);
  p.dqkv = bench.output(dtype, rows * stride);
  return p;
}

double forward_error(const Problem& p) {
  const Reference& r = p.reference;
  Comparison comparison;
  const int64_t first = (p.batch - 1) * r.seq_len;
  for (int64_t head : samples(r.heads, 2))
    for (int64_t position : samples(r.seq_len, 4)) {
      std::vector<double> want = r.output(first, r.probabilities(first, position, head), head);
      std::vector<double> got = p.o.read(((first + position) * r.heads + head) * r.dim, r.dim);
      for (int64_t i = 0; i < r.dim; ++i) comparison.add(got[i], want[i]);
    }
  return comparison.error();
}

double backward_error(const Problem& p) {
  const Reference& r = p.reference;
  const int64_t first = (p.batch - 1) * r.seq_len, key = std::max<int64_t>(0, r.seq_len - 8);
  const int64_t group = r.heads / r.kv_heads, kv = r.kv_heads - 1;
  Comparison dq, dk, dv;
  std::vector<double> want_dk(r.dim), want_dv(r.dim);
  for (int64_t head = kv * group; head < r.heads; ++head)
    for (int64_t position = key; position < r.seq_len; ++position) {
      const std::vector<double> prob = r.probabilities(first, position, head);
      const std::vector<double> ds = r.dscores(first, position, head, prob);
      std::vector<double> want_dq(r.dim), got = p.dqkv.read((first + position) * r.stride() + head * r.dim, r.dim);
      for (int64_t i = 0; i < r.dim; ++i) {
        for (int64_t j = 0; j <= position; ++j) want_dq[i] += r.scale * ds[j] * r.k(first + j, kv, i);
        want_dk[i] += r.scale * ds[key] * r.q(first + position, head, i);
        want_dv[i] += prob[key] * r.dout(first + position, head, i);
        dq.add(got[i], want_dq[i]);
      }
    }
  const int64_t row = (first + key) * r.stride();
  std::vector<double> got_dk = p.dqkv.read(row + (r.heads + kv) * r.dim, r.dim);
  std::vector<double> got_dv = p.dqkv.read(row + (r.heads + r.kv_heads + kv) * r.dim, r.dim);
  for (int64_t i = 0; i < r.dim; ++i) dk.add(got_dk[i], want_dk[i]), dv.add(got_dv[i], want_dv[i]);
  return std::max({dq.error(), dk.error(), dv.error()});
}

void jobs(Bench& bench, int64_t rows, int64_t seq_len, int64_t heads, int64_t kv_heads, int64_t dim) {
  const DType dtype = bench.shapes().dtype;
  const std::string shape = str(rows / seq_len, " x ", seq_len, " x ", heads, "/", kv_heads, " x ", dim);
  // Half of two products forward, of five backward: the scores again, and four gradients.
  const double flops = 2.0 * rows * heads * (seq_len + 1) * dim;
  const double tolerance = dtype == DType::kBf16 ? 1e-2 : 1e-4;
  const size_t bytes = 2 * rows * (heads + 2 * kv_heads) * dim * size_of(dtype);
  if (bench.wants("attention forward")) {
    Problem p;
    auto launches = bench.sets(bytes, [&](int set) {
      p = make_problem(bench, rows, seq_len, heads, kv_heads, dim, set);
      return bench.launch_of(bench.with_workspace(p.forward()));
    });
    bench.run({"attention forward", shape, dtype, Bound::kProduct, flops, launches, [p] { return forward_error(p); },
               tolerance});
  }
  if (bench.wants("attention backward")) {
    Problem p;
    auto launches = bench.sets(bytes, [&](int set) {
      p = make_problem(bench, rows, seq_len, heads, kv_heads, dim, set);
      xce::run(bench.exec(), bench.with_workspace(p.forward()));
      return bench.launch_of(bench.with_workspace(p.backward()));
    });
    bench.run({"attention backward", shape, dtype, Bound::kProduct, 2.5 * flops, launches,
               [p] { return backward_error(p); }, tolerance});
  }
}

}  // namespace

void attention_jobs(Bench& bench) {
  const Shapes& s = bench.shapes();
  if (!bench.wants("attention forward") && !bench.wants("attention backward")) return;
  if (!std::visit([]<class D>(const D&) { return HasKernel<D, AttentionBackward>; }, bench.exec())) {
    std::printf("attention: no kernel for this device\n");
    return;
  }
  jobs(bench, s.rows, s.seq_len, s.heads, s.kv_heads, s.head_dim);
}

}  // namespace xce::bench

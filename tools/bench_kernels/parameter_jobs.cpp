// Embedding, and what goes over all parameters.
#include <cmath>
#include <map>

#include "kernels/adamw.h"
#include "kernels/embedding.h"
#include "kernels/norm2.h"
#include "tools/bench_kernels/bench.h"

namespace xce::bench {
namespace {

std::vector<int32_t> tokens_of(int64_t rows, int64_t vocab, bool one_token) {
  std::vector<int32_t> tokens(rows);
  uint64_t state = 1;
  for (int32_t& token : tokens) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    token = one_token ? 7 : static_cast<int32_t>((state >> 33) % vocab);
  }
  return tokens;
}
int32_t* on_device(Bench& bench, const std::vector<int32_t>& tokens) {
  void* data = bench.device().allocate(tokens.size() * sizeof(int32_t));
  bench.device().write(data, tokens.data(), tokens.size() * sizeof(int32_t));
  return static_cast<int32_t*>(data);
}

void embedding_forward(Bench& bench) {
  const auto [rows, hidden, vocab, dtype] =
      std::tuple{bench.shapes().rows, bench.shapes().hidden, bench.shapes().vocab, bench.shapes().dtype};
  const int64_t bytes = 2 * rows * hidden * size_of(dtype);
  const std::vector<int32_t> tokens = tokens_of(rows, vocab, false);
  const int32_t* device_tokens = on_device(bench, tokens);
  Array weight = bench.source(dtype, vocab * hidden, 1), y;
  auto launches = bench.sets(bytes, [&, rows = rows, hidden = hidden, vocab = vocab, dtype = dtype](int) {
    y = bench.output(dtype, rows * hidden);
    return bench.launch_of(EmbeddingForward{weight.data(), device_tokens, y.data(), rows, vocab, hidden, dtype});
  });
  auto error = [=, rows = rows, hidden = hidden] {
    Comparison comparison;
    for (int64_t r : samples(rows, 50)) {
      std::vector<double> got = y.read(r * hidden, hidden);
      for (int64_t i = 0; i < hidden; ++i) comparison.add(got[i], weight[tokens[r] * hidden + i]);
    }
    return comparison.error();
  };
  bench.run({"embedding forward", str(rows, " x ", hidden), dtype, Bound::kBytes, static_cast<double>(bytes), launches,
             error, 0});
}

// Bytes: dy read, and each token's row of dweight read and written.
void embedding_backward(Bench& bench, const std::string& op, bool one_token) {
  const int64_t rows = bench.shapes().rows, hidden = bench.shapes().hidden, vocab = bench.shapes().vocab;
  const DType dtype = bench.shapes().dtype, accum = accum_dtype(dtype);
  const std::vector<int32_t> tokens = tokens_of(rows, vocab, one_token);
  const int32_t* device_tokens = on_device(bench, tokens);
  std::map<int32_t, std::vector<int64_t>> rows_of;
  for (int64_t r = 0; r < rows; ++r) rows_of[tokens[r]].push_back(r);
  const auto distinct = static_cast<int64_t>(rows_of.size());
  const int64_t bytes = rows * hidden * size_of(dtype) + 2 * distinct * hidden * size_of(accum);
  Array dy, dweight = bench.source(accum, vocab * hidden, 99);
  auto launches = bench.sets(bytes, [&](int set) {
    dy = bench.source(dtype, rows * hidden, set + 1);
    return bench.launch_of(
        EmbeddingBackward{dy.data(), device_tokens, dweight.data(), rows, vocab, hidden, dtype, true});
  });
  auto error = [=] {
    Comparison comparison;
    for (int64_t r : samples(rows, 20)) {
      std::vector<double> got = dweight.read(tokens[r] * hidden, hidden);
      for (int64_t i = 0; i < hidden; ++i) {
        double want = dweight[tokens[r] * hidden + i];
        for (int64_t row : rows_of.at(tokens[r])) want += dy[row * hidden + i];
        comparison.add(got[i], want);
      }
    }
    return comparison.error();
  };
  bench.run({op, str(rows, " x ", hidden), dtype, Bound::kBytes, static_cast<double>(bytes), launches, error,
             tolerance_of(accum)});
}

// Bytes: master, m and v read and written, the gradient read, the compute copy written where there is one.
void adamw(Bench& bench) {
  const int64_t n = bench.shapes().parameters;
  const DType dtype = bench.shapes().dtype, accum = accum_dtype(dtype);
  const bool copy = dtype != accum;
  const double bytes = static_cast<double>(n) * (7 * size_of(accum) + (copy ? size_of(dtype) : 0));
  constexpr float kDecay = 0.1f;
  Array master = bench.source(accum, n, 1), m = bench.source(accum, n, 2, 0.1), grad = bench.source(accum, n, 3);
  Array v = Array::zeros(bench.device(), accum, n), compute = copy ? bench.output(dtype, n) : Array();
  std::vector<float> decays((n + AdamW::kBlock - 1) / AdamW::kBlock, kDecay);
  auto* decay = static_cast<float*>(bench.device().allocate(decays.size() * sizeof(float)));
  bench.device().write(decay, decays.data(), decays.size() * sizeof(float));
  StepState state;
  state.updates = 3, state.lr = 1e-3, state.grad_scale = 0.5, state.apply = 1;
  auto* device_state = static_cast<StepState*>(bench.device().allocate(sizeof(state)));
  bench.device().write(device_state, &state, sizeof(state));
  AdamW args{master.data(), m.data(),     v.data(), grad.data(), copy ? compute.data() : nullptr,
             decay,         device_state, n,        dtype};
  auto error = [=] {
    Comparison updates, copies;
    const int64_t count = std::min<int64_t>(n, 100003);
    for (int64_t begin : {int64_t{0}, n - count}) {
      std::vector<double> got = master.read(begin, count), rounded;
      if (copy) rounded = compute.read(begin, count);
      for (int64_t i = 0; i < count; ++i) {
        const double g = grad[begin + i] * state.grad_scale, before = master[begin + i];
        const double new_m = args.beta1 * m[begin + i] + (1 - args.beta1) * g, new_v = (1 - args.beta2) * g * g;
        const double root = std::sqrt(new_v / (1 - std::pow(args.beta2, state.updates))) + args.eps;
        const double update = new_m / (1 - std::pow(args.beta1, state.updates)) / root;
        const double want = before - state.lr * (update + static_cast<double>(kDecay) * before);
        updates.add(got[i], want);
        if (copy) copies.add(rounded[i], want);
      }
    }
    return std::max(updates.error(), copies.error() / tolerance_of(dtype) * tolerance_of(accum));
  };
  bench.run({"adamw", str(n), dtype, Bound::kBytes, bytes, {bench.launch_of(args)}, error, tolerance_of(accum)});
}

void norm2(Bench& bench) {
  const int64_t n = bench.shapes().parameters;
  const DType dtype = accum_dtype(bench.shapes().dtype);
  Array x = bench.source(dtype, n, 1), out = bench.output(DType::kF64, 1);
  Norm2 args{x.data(), static_cast<double*>(out.data()), nullptr, 0, n, dtype};
  auto error = [=] {
    double want = 0;
    for (int64_t i = 0; i < n; ++i) want += x[i] * x[i];
    Comparison comparison;
    comparison.add(out.read(0, 1)[0], want);
    return comparison.error();
  };
  bench.run({"norm2",
             str(n),
             dtype,
             Bound::kBytes,
             static_cast<double>(n * size_of(dtype)),
             {bench.launch_of(bench.with_workspace(args))},
             error,
             1e-9});
}

}  // namespace

void embedding_jobs(Bench& bench) {
  if (bench.wants("embedding forward")) embedding_forward(bench);
  if (bench.wants("embedding backward, uniform")) embedding_backward(bench, "embedding backward, uniform", false);
  if (bench.wants("embedding backward, one")) embedding_backward(bench, "embedding backward, one", true);
}

void parameter_jobs(Bench& bench) {
  if (bench.wants("adamw")) adamw(bench);
  if (bench.wants("norm2")) norm2(bench);
}

}  // namespace xce::bench

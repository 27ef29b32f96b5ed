// Cross-entropy over given logits: forward reads them once, backward reads and writes them, both in one call ideally
// too.
#include <algorithm>
#include <cmath>

#include "kernels/cross_entropy/cross_entropy.h"
#include "tools/bench_kernels/bench.h"

namespace xce::bench {
namespace {

constexpr int64_t kRows = 5;
constexpr double kSpread = 2;

struct Row {
  double loss;
  std::vector<double> gradient;  // of the loss
};
Row row_of(const Array& logits, int64_t r, int64_t vocab, int64_t label) {
  std::vector<double> p(vocab);
  for (int64_t v = 0; v < vocab; ++v) p[v] = logits[r * vocab + v];
  const double top = *std::max_element(p.begin(), p.end()), target = p[label];
  double sum = 0;
  for (double& z : p) z = std::exp(z - top), sum += z;
  for (double& z : p) z /= sum;
  p[label] -= 1;
  return {std::log(sum) - (target - top), p};
}

enum class Call { kForward, kBackward, kBoth };
constexpr const char* kNames[] = {"cross-entropy forward", "cross-entropy backward", "cross-entropy both"};

void cross_entropy(Bench& bench, Call call, int64_t rows, int64_t vocab, DType dtype) {
  const int64_t n = rows * vocab, read = n * static_cast<int64_t>(size_of(dtype));
  const int64_t bytes = call == Call::kForward ? read : 2 * read;
  const DType accum = accum_dtype(dtype);
  std::vector<int32_t> labels(rows);
  for (int64_t r = 0; r < rows; ++r) labels[r] = static_cast<int32_t>(r * 7919 % vocab);
  Array logits, dlogits, row_loss;
  auto launches = bench.sets(bytes, [&](int set) {
    logits = bench.source(dtype, n, set + 1, kSpread);
    if (call != Call::kForward) dlogits = bench.output(dtype, n);
    row_loss = bench.output(accum, rows);
    Array offset = bench.output(accum, rows), logsum = bench.output(accum, rows), loss = bench.output(accum, 1);
    void* index = bench.device().allocate(rows * sizeof(int32_t));
    bench.device().write(index, labels.data(), rows * sizeof(int32_t));
    const CrossEntropyInputs in{
        .logits = logits.data(), .targets = {.index = index}, .rows = rows, .vocab = vocab, .dtype = dtype};
    const LossOutputs out{
        .loss = loss.data(), .row_loss = row_loss.data(), .offset = offset.data(), .logsum = logsum.data()};
    const auto forward = bench.with_workspace(CrossEntropyForward{.in = in, .options = {}, .out = out});
    if (call == Call::kForward) return bench.launch_of(forward);
    if (call == Call::kBoth)
      return bench.launch_of(bench.with_workspace(
          CrossEntropyForwardBackward{.in = in, .options = {}, .out = out, .upstream = {}, .dlogits = dlogits.data()}));
    xce::run(bench.exec(), forward);
    return bench.launch_of(bench.with_workspace(CrossEntropyBackward{.in = in,
                                                                     .options = {},
                                                                     .offset = offset.data(),
                                                                     .logsum = logsum.data(),
                                                                     .upstream = {},
                                                                     .dlogits = dlogits.data()}));
  });
  auto error = [=] {
    Comparison losses, gradients;
    for (int64_t r : samples(rows, kRows)) {
      const Row want = row_of(logits, r, vocab, labels[r]);
      losses.add(row_loss.read(r, 1)[0], want.loss);
      if (call == Call::kForward) continue;
      const std::vector<double> got = dlogits.read(r * vocab, vocab);
      for (int64_t v = 0; v < vocab; ++v) gradients.add(got[v] * static_cast<double>(rows), want.gradient[v]);
    }
    // Losses are of accum_dtype: held to that bound, scaled to this one.
    return std::max(losses.error() / tolerance_of(accum) * tolerance_of(dtype), gradients.error());
  };
  bench.run({kNames[static_cast<int>(call)], str(rows, " x ", vocab), dtype, Bound::kBytes, static_cast<double>(bytes),
             launches, error, tolerance_of(dtype)});
}

}  // namespace

void loss_jobs(Bench& bench) {
  const Shapes& s = bench.shapes();
  std::vector<DType> dtypes = {s.dtype};
  if (s.dtype != DType::kF32) dtypes.push_back(DType::kF32);
  for (DType dtype : dtypes)
    for (int64_t vocab : s.loss_vocabs)
      for (Call call : {Call::kForward, Call::kBackward, Call::kBoth})
        if (bench.wants(kNames[static_cast<int>(call)])) cross_entropy(bench, call, s.loss_rows, vocab, dtype);
}

}  // namespace xce::bench

// Times linear and attention on the CPU at a small model's shapes: the fastest of several rounds, in microseconds and
// GFLOP/s. usage: bench_kernels [threads]
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <utility>
#include <vector>

#include "kernels/attention.h"
#include "kernels/cpu/blas_core.h"
#include "kernels/cpu/parallel.h"
#include "kernels/linear.h"

namespace {

using xce::DType;

template <class T = float>
std::vector<T> array(int64_t n) {
  std::vector<T> values(n);
  for (int64_t i = 0; i < n; ++i) values[i] = T(static_cast<float>(std::sin(0.7 * i)));
  return values;
}

template <class F>
double best_us(F&& fn) {
  double best = std::numeric_limits<double>::infinity();
  for (int round = 0; round < 40; ++round) {
    auto start = std::chrono::steady_clock::now();
    fn();
    best = std::min(best, std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count());
  }
  return best;
}

template <class Args>
double time_us(const xce::Exec& exec, Args args) {
  std::vector<char> workspace(xce::workspace_bytes(exec, args));
  args.workspace = workspace.data();
  args.workspace_size_bytes = workspace.size();
  return best_us([&] { xce::run(exec, args); });
}

void report(const char* what, double us, double flops) {
  std::printf("  %-24s %9.1f us %7.1f GFLOP/s\n", what, us, flops / us * 1e-3);
}

template <class T>
void linear(const xce::Exec& exec, DType dtype, int64_t rows, int64_t in, int64_t out) {
  auto x = array<T>(rows * in), w = array<T>(in * out), y = array<T>(rows * out), dx = array<T>(rows * in);
  auto dw = array(in * out);
  double flops = 2.0 * rows * in * out;
  std::printf("linear %s rows %ld in %ld out %ld\n", name_of(dtype), long(rows), long(in), long(out));
  xce::LinearForward f{x.data(), w.data(), y.data(), nullptr, 0, rows, in, out, dtype};
  report("forward", time_us(exec, f), flops);
  xce::LinearBackward b{x.data(), w.data(), y.data(), dx.data(), nullptr, nullptr, 0, rows, in, out, dtype};
  report("dx", time_us(exec, b), flops);
  b.dx = nullptr, b.dweight = dw.data();
  report("dweight", time_us(exec, b), flops);
  b.dx = dx.data();
  report("dx and dweight", time_us(exec, b), 2 * flops);
}

void attention(const xce::Exec& exec, int64_t batch, int64_t seq, int64_t heads, int64_t head_dim) {
  int64_t width = heads * head_dim, rows = batch * seq;
  auto qkv = array(rows * 3 * width), dqkv = array(rows * 3 * width), o = array(rows * width),
       d_o = array(rows * width), lse = array(batch * heads * seq);
  float *q = qkv.data(), *dq = dqkv.data();
  double flops = 2.0 * batch * heads * seq * (seq + 1) * head_dim;
  std::printf("attention batch %ld seq %ld heads %ld head_dim %ld\n", long(batch), long(seq), long(heads),
              long(head_dim));
  xce::AttentionForward f{q,         q + width,   q + 2 * width,
                          3 * width, o.data(),    lse.data(),
                          nullptr,   0,           batch,
                          seq,       heads,       heads,
                          head_dim,  DType::kF32, 1 / std::sqrt(double(head_dim))};
  report("forward", time_us(exec, f), flops);
  xce::AttentionBackward b{q,   q + width,  q + 2 * width,  3 * width, o.data(),    lse.data(), d_o.data(),
                           dq,  dq + width, dq + 2 * width, 3 * width, nullptr,     0,          batch,
                           seq, heads,      heads,          head_dim,  DType::kF32, f.scale};
  report("backward", time_us(exec, b), 2.5 * flops);
}

}  // namespace

int main(int argc, char** argv) {
  xce::ThreadPool pool(argc > 1 ? std::atoi(argv[1]) : xce::hardware_threads());
  xce::Exec exec = xce::CpuExec{&pool};
  for (auto [in, out] : {std::pair{128, 384}, {128, 128}, {128, 768}, {384, 128}, {128, 256}}) {
    linear<float>(exec, DType::kF32, 2048, in, out);
    linear<xce::Bf16>(exec, DType::kBf16, 2048, in, out);
  }
  attention(exec, 16, 128, 4, 32);
  attention(exec, 1, 2048, 8, 64);
  std::printf("%d threads, BLAS core %s\n", pool.size(), xce::cpu::blas_core());
}

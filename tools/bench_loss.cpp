// forward_backward of linear cross-entropy beside its three matrix products alone: plain OpenBLAS sgemm over full-size
// logits, each product split over the same threads in the best of its ways. The two are interleaved, round by round.
#include <cblas.h>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <functional>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "kernels/cpu/blas_core.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/parallel.h"
#include "kernels/linear_cross_entropy/linear_cross_entropy.h"

namespace {

using namespace xce;
using cpu::Trans;

struct Options {
  int64_t rows = 512, hidden = 256, vocab = 131072;
  DType dtype = DType::kF32;
  std::vector<int64_t> budgets_mib = {128, 64};
  int rounds = 15;
  int threads = 2;
  bool json = false;
};

template <class T>
struct Problem {
  Options o;
  std::vector<T> x, weight, dx;
  std::vector<float> dweight;
  std::vector<int32_t> labels;
  std::vector<char> scratch;
  float loss = 0;

  explicit Problem(const Options& options) : o(options) {
    std::mt19937 gen(1);
    std::normal_distribution<float> normal;
    auto fill = [&](std::vector<T>& a, int64_t n, float scale) {
      a.resize(n);
      for (T& value : a) value = T(normal(gen) * scale);
    };
    fill(x, o.rows * o.hidden, 1);
    fill(weight, o.vocab * o.hidden, 1 / std::sqrt(static_cast<float>(o.hidden)));
    dx.resize(x.size());
    dweight.resize(weight.size());
    for (int64_t i = 0; i < o.rows; ++i) labels.push_back(static_cast<int32_t>(gen() % o.vocab));
  }

  LinearCrossEntropyForwardBackward args(size_t budget_bytes, const CpuExec& exec) {
    LinearCrossEntropyForwardBackward a{
        .in = {.x = x.data(),
               .weight = weight.data(),
               .bias = nullptr,
               .targets = {.index = labels.data()},
               .rows = o.rows,
               .hidden = o.hidden,
               .vocab = o.vocab,
               .dtype = o.dtype},
        .options = {},
        .out = {.loss = &loss},
        .upstream = {},
        .grad = {.dx = dx.data(), .dweight = dweight.data()},
        .workspace = {.budget_bytes = budget_bytes},
    };
    a.workspace.size_bytes = workspace_bytes(exec, a);
    scratch.assign(std::max(scratch.size(), a.workspace.size_bytes), 1);
    a.workspace.data = scratch.data();
    return a;
  }
};

double seconds(const std::function<void()>& work) {
  auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Processor time of all threads: what a neighbour's load disturbs less than the clock on the wall.
double cpu_seconds() {
  timespec now;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

struct Spread {
  double low, median, high;
};
Spread spread(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return {values.front(), values[values.size() / 2], values.back()};
}

// C (m x n) = op(A) op(B) over the pool: `by_rows` cuts C's rows, else its columns.
struct Product {
  Trans ta, tb;
  int64_t m, n, k;
  const float *a, *b;
  float* c;
  int64_t lda, ldb, ldc;

  void openblas(int64_t rows, int64_t cols, const float* from_a, const float* from_b, float* to) const {
    auto code = [](Trans trans) { return trans == Trans::kYes ? CblasTrans : CblasNoTrans; };
    cblas_sgemm(CblasRowMajor, code(ta), code(tb), static_cast<int>(rows), static_cast<int>(cols), static_cast<int>(k),
                1, from_a, static_cast<int>(lda), from_b, static_cast<int>(ldb), 0, to, static_cast<int>(ldc));
  }
  void run(const CpuExec& exec, bool by_rows) const {
    parallel_for(exec, by_rows ? m : n, 1, [&](int64_t begin, int64_t end, int) {
      if (by_rows) {
        const float* rows = ta == Trans::kNo ? a + begin * lda : a + begin;
        openblas(end - begin, n, rows, b, c + begin * ldc);
      } else {
        const float* columns = tb == Trans::kNo ? b + begin : b + begin * ldb;
        openblas(m, end - begin, a, columns, c + begin);
      }
    });
  }
};

// z = x W^T, dx = z W, dW = z^T x with z (rows, vocab) whole.
class Baseline {
 public:
  Baseline(const Options& o, const CpuExec& exec) : exec_(exec) {
    std::mt19937 gen(2);
    std::normal_distribution<float> normal;
    x_.resize(o.rows * o.hidden), w_.resize(o.vocab * o.hidden);
    for (float& value : x_) value = normal(gen);
    for (float& value : w_) value = normal(gen);
    z_.assign(o.rows * o.vocab, 0), dx_.assign(x_.size(), 0), dw_.assign(w_.size(), 0);
    int64_t n = o.rows, h = o.hidden, v = o.vocab;
    products_ = {Product{Trans::kNo, Trans::kYes, n, v, h, x_.data(), w_.data(), z_.data(), h, h, v},
                 Product{Trans::kNo, Trans::kNo, n, h, v, z_.data(), w_.data(), dx_.data(), v, h, h},
                 Product{Trans::kYes, Trans::kNo, v, h, n, z_.data(), x_.data(), dw_.data(), v, h, h}};
    for (const Product& p : products_) {
      double best[2] = {1e30, 1e30};
      for (int round = 0; round < 3; ++round)
        for (int by_rows : {0, 1}) best[by_rows] = std::min(best[by_rows], seconds([&] { p.run(exec_, by_rows); }));
      by_rows_.push_back(best[1] < best[0]);
    }
  }
  void run() const {
    for (size_t i = 0; i < products_.size(); ++i) products_[i].run(exec_, by_rows_[i]);
  }

 private:
  CpuExec exec_;
  std::vector<float> x_, w_, z_, dx_, dw_;
  std::vector<Product> products_;
  std::vector<bool> by_rows_;
};

// Loss and sampled gradients against fp64: a wrong result is not worth timing.
template <class T>
bool verify(Problem<T>& p) {
  const Options& o = p.o;
  auto dot = [&](int64_t i, int64_t v) {
    double s = 0;
    for (int64_t h = 0; h < o.hidden; ++h)
      s += static_cast<double>(p.x[i * o.hidden + h]) * static_cast<double>(p.weight[v * o.hidden + h]);
    return s;
  };
  double worst = 0;
  for (int64_t i = 0; i < o.rows; i += std::max<int64_t>(1, o.rows / 3)) {
    std::vector<double> z(o.vocab), want(o.hidden, 0.0);
    double sum = 0, norm = 0, error = 0;
    for (int64_t v = 0; v < o.vocab; ++v) sum += std::exp(z[v] = dot(i, v));
    for (int64_t v = 0; v < o.vocab; ++v) {
      double g = (std::exp(z[v]) / sum - (v == p.labels[i])) / static_cast<double>(o.rows);
      for (int64_t h = 0; h < o.hidden; ++h) want[h] += g * static_cast<double>(p.weight[v * o.hidden + h]);
    }
    for (int64_t h = 0; h < o.hidden; ++h) {
      norm += want[h] * want[h];
      error += std::pow(static_cast<double>(p.dx[i * o.hidden + h]) - want[h], 2);
    }
    worst = std::max(worst, std::sqrt(error / norm));
  }
  double logs = std::log(static_cast<double>(o.vocab));
  return worst < (o.dtype == DType::kBf16 ? 4e-3 : 5e-6) && std::fabs(p.loss - logs) < 2;
}

template <class T>
int bench(const Options& o) {
  ThreadPool pool(o.threads);
  CpuExec exec{&pool};
  cpu::select_blas_core();
  openblas_set_num_threads(1);
  Problem<T> problem(o);
  Baseline baseline(o, exec);
  double flops = 6.0 * static_cast<double>(o.rows) * static_cast<double>(o.hidden) * static_cast<double>(o.vocab);
  for (int64_t mib : o.budgets_mib) {
    auto args = problem.args(static_cast<size_t>(mib) << 20, exec);
    launch(exec, args);
    if (!verify(problem)) {
      std::fprintf(stderr, "bench_loss: wrong result at a budget of %lld MiB\n", static_cast<long long>(mib));
      return 1;
    }
    std::vector<double> loss_ms, gemm_ms, ratios, cpu_ratios;
    for (int round = 0; round < o.rounds; ++round) {
      double cpu0 = cpu_seconds();
      gemm_ms.push_back(1e3 * seconds([&] { baseline.run(); }));
      double cpu1 = cpu_seconds();
      loss_ms.push_back(1e3 * seconds([&] { launch(exec, args); }));
      ratios.push_back(loss_ms.back() / gemm_ms.back());
      cpu_ratios.push_back((cpu_seconds() - cpu1) / (cpu1 - cpu0));
    }
    Spread loss = spread(loss_ms), gemm = spread(gemm_ms), ratio = spread(ratios), cpu = spread(cpu_ratios);
    double gflops = flops / loss.median * 1e-6, gemm_gflops = flops / gemm.median * 1e-6;
    if (o.json) {
      nlohmann::json record = {{"rows", o.rows},
                               {"hidden", o.hidden},
                               {"vocab", o.vocab},
                               {"dtype", name_of(o.dtype)},
                               {"threads", o.threads},
                               {"blas_core", cpu::blas_core()},
                               {"budget_mib", mib},
                               {"workspace_bytes", args.workspace.size_bytes},
                               {"chunks", chunks(exec, args).count},
                               {"time_ms", loss.median},
                               {"time_ms_min", loss.low},
                               {"time_ms_max", loss.high},
                               {"gflops", gflops},
                               {"gemm_ms", gemm.median},
                               {"gemm_gflops", gemm_gflops},
                               {"ratio", ratio.median},
                               {"ratio_of_minima", loss.low / gemm.low},
                               {"cpu_ratio", cpu.median}};
      std::printf("%s\n", record.dump().c_str());
    } else {
      std::printf(
          "N %lld H %lld V %lld %s, %d threads, %s: workspace %.1f of %lld MiB, %lld chunks\n"
          "  forward_backward %8.1f ms  [%.1f .. %.1f]  %6.1f GFLOP/s\n"
          "  three sgemms     %8.1f ms  [%.1f .. %.1f]  %6.1f GFLOP/s\n"
          "  ratio            %8.3f     [%.3f .. %.3f], of minima %.3f, of CPU times %.3f\n",
          static_cast<long long>(o.rows), static_cast<long long>(o.hidden), static_cast<long long>(o.vocab),
          name_of(o.dtype), o.threads, cpu::blas_core(), static_cast<double>(args.workspace.size_bytes) / (1 << 20),
          static_cast<long long>(mib), static_cast<long long>(chunks(exec, args).count), loss.median, loss.low,
          loss.high, gflops, gemm.median, gemm.low, gemm.high, gemm_gflops, ratio.median, ratio.low, ratio.high,
          loss.low / gemm.low, cpu.median);
    }
  }
  return 0;
}

Options parse(int argc, char** argv) {
  Options o;
  for (int i = 1; i < argc; ++i) {
    std::string name = argv[i];
    if (name == "--json") {
      o.json = true;
      continue;
    }
    XCE_CHECK(i + 1 < argc, "a value after the option", name);
    const char* value = argv[++i];
    if (name == "--rows")
      o.rows = std::atoll(value);
    else if (name == "--hidden")
      o.hidden = std::atoll(value);
    else if (name == "--vocab")
      o.vocab = std::atoll(value);
    else if (name == "--rounds")
      o.rounds = std::atoi(value);
    else if (name == "--threads")
      o.threads = std::atoi(value);
    else if (name == "--budget-mib")
      o.budgets_mib = {std::atoll(value)};
    else if (name == "--dtype")
      o.dtype = std::strcmp(value, "bf16") == 0 ? DType::kBf16 : DType::kF32;
    else
      throw Error(ErrorCode::kUsage, str("unknown option ", name));
  }
  return o;
}

}  // namespace

// bench_loss [--rows N] [--hidden H] [--vocab V] [--dtype fp32|bf16] [--budget-mib M] [--rounds R] [--threads T]
// [--json]
int main(int argc, char** argv) {
  try {
    Options o = parse(argc, argv);
    return o.dtype == DType::kBf16 ? bench<Bf16>(o) : bench<float>(o);
  } catch (const Error& error) {
    std::fprintf(stderr, "bench_loss: %s\n", error.what());
    return static_cast<int>(error.code());
  }
}

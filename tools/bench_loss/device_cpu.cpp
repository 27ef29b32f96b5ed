// The baseline: plain OpenBLAS sgemm over full-size logits, each product split over the same threads in the better of
// its two ways.
#include <cblas.h>
#include <algorithm>
#include <chrono>
#include <ctime>

#include "kernels/cpu/blas_core.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/parallel.h"
#include "tools/bench_loss/device.h"

namespace xce::bench {
namespace {

using cpu::Trans;

double seconds(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Processor time of all threads: what a neighbour's load disturbs less than the clock on the wall.
double cpu_seconds() {
  timespec now;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
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

// In fp32 whatever the loss's dtype; arrays of its own.
class ThreeProducts {
 public:
  ThreeProducts(const LossShape& s, const CpuExec& exec)
      : exec_(exec),
        x_(s.rows * s.hidden, 0.5f),
        w_(s.vocab * s.hidden, 0.25f),
        z_(s.rows * s.vocab),
        dx_(x_),
        dw_(w_) {
    for (size_t i = 0; i < w_.size(); ++i) w_[i] = static_cast<float>(i % 1009) * 1e-3f - 0.5f;
    const int64_t n = s.rows, h = s.hidden, v = s.vocab;
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

class CpuLossDevice : public LossDevice {
 public:
  explicit CpuLossDevice(int threads) : memory_(make_cpu_device(threads)) {
    cpu::select_blas_core();
    openblas_set_num_threads(1);
  }
  Device& memory() override { return *memory_; }
  const Exec* untuned_exec() override { return nullptr; }
  void tune(const std::function<void()>& call) override { call(); }
  std::string plans_text() override { return ""; }
  Sample time(const std::function<void()>& call, double) override {
    const double before = cpu_seconds(), wall = seconds(call);
    return {1e3 * wall, 1e3 * (cpu_seconds() - before)};
  }
  std::function<void()> three_products(const LossShape& shape, DType, bool, const ProductArrays&) override {
    auto products = std::make_shared<ThreeProducts>(shape, std::get<CpuExec>(memory_->exec()));
    return [products] { products->run(); };
  }

 private:
  std::unique_ptr<Device> memory_;
};

}  // namespace

std::unique_ptr<LossDevice> make_cpu_loss_device(int threads) {
  return std::make_unique<CpuLossDevice>(threads);
}

}  // namespace xce::bench

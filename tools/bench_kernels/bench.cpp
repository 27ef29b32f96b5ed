#include "tools/bench_kernels/bench.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "kernels/linear.h"

namespace xce::bench {
namespace {

// 708 TFLOP/s, 24.1 GB/s.
std::string rate(double per_second, const char* unit) {
  const bool tera = per_second >= 1e12;
  char text[48];
  std::snprintf(text, sizeof(text), "%7.4g %c%s/s", per_second / (tera ? 1e12 : 1e9), tera ? 'T' : 'G', unit);
  return text;
}

nlohmann::json json_of(const Timing& t) {
  return {{"time_ms", t.median_ms},
          {"time_ms_min", t.low_ms},
          {"time_ms_max", t.high_ms},
          {"rounds", t.rounds},
          {"launches_per_round", t.launches}};
}

}  // namespace

double Comparison::error() const {
  return want2_ > 0 ? std::sqrt(difference2_ / want2_) : std::sqrt(difference2_);
}

std::vector<int64_t> samples(int64_t n, int64_t count) {
  std::vector<int64_t> at;
  for (int64_t i = 0; i < std::min(n, count); ++i) at.push_back(count > 1 ? i * (n - 1) / (std::min(n, count) - 1) : 0);
  return at;
}

double tolerance_of(DType dtype) {
  return dtype == DType::kBf16 ? 4e-3 : dtype == DType::kF32 ? 2e-5 : 1e-12;
}

bool Bench::wants(const std::string& op) const {
  return op.find(only_) != std::string::npos;
}

void Bench::measure_ceilings() {
  const Shapes& s = shapes_;
  {
    Array x = source(s.dtype, s.gemm_rows * s.gemm_side, 1), w = source(s.dtype, s.gemm_side * s.gemm_side, 2);
    Array y = output(s.dtype, s.gemm_rows * s.gemm_side);
    auto args = with_workspace(
        LinearForward{x.data(), w.data(), y.data(), nullptr, 0, s.gemm_rows, s.gemm_side, s.gemm_side, s.dtype});
    Timing t = device_.time({launch_of(args)}, sustained_ms_);
    double side = static_cast<double>(s.gemm_side);
    product_flops_ = 2 * static_cast<double>(s.gemm_rows) * side * side / t.median_ms * 1e3;
    std::printf("ceiling: product of %lld x %lld and %lld x %lld, %s: %s\n", static_cast<long long>(s.gemm_rows),
                static_cast<long long>(s.gemm_side), static_cast<long long>(s.gemm_side),
                static_cast<long long>(s.gemm_side), name_of(s.dtype), rate(product_flops_, "FLOP").c_str());
    device_.release_all();
  }
  const int64_t n = static_cast<int64_t>(s.copy_bytes / 4);
  Array from = source(DType::kF32, n, 3), to = output(DType::kF32, n);
  Timing t = device_.time({[&] { device_.copy(to.data(), from.data(), s.copy_bytes); }}, sustained_ms_);
  copy_bytes_ = 2 * static_cast<double>(s.copy_bytes) / t.median_ms * 1e3;
  std::printf("ceiling: copy of %.0f MiB, read and written: %s\n", static_cast<double>(s.copy_bytes) / (1 << 20),
              rate(copy_bytes_, "B").c_str());
  device_.release_all();
  ceilings_.push_back({{"product_flops_per_s", product_flops_}, {"copy_bytes_per_s", copy_bytes_}});
}

void Bench::run(const Job& job) {
  job.launches[0]();
  const double error = job.error();
  if (!(error <= job.tolerance))
    throw Error(ErrorCode::kRuntime, str(job.op, " ", job.shape, " ", name_of(job.dtype), ": relative error ", error,
                                         ", expected at most ", job.tolerance));
  const Timing t = device_.time(job.launches, sustained_ms_);
  const bool product = job.bound == Bound::kProduct;
  const double per_second = job.work / t.median_ms * 1e3, ceiling = product ? product_flops_ : copy_bytes_;
  std::printf("%-28s %-22s %s %9.4f ms  [%.4f .. %.4f]  %s  %5.1f %%  error %.1e\n", job.op.c_str(), job.shape.c_str(),
              name_of(job.dtype), t.median_ms, t.low_ms, t.high_ms, rate(per_second, product ? "FLOP" : "B").c_str(),
              100 * per_second / ceiling, error);
  std::fflush(stdout);
  nlohmann::json result = json_of(t);
  result.update({{"op", job.op},
                 {"shape", job.shape},
                 {"dtype", name_of(job.dtype)},
                 {product ? "flops_per_s" : "bytes_per_s", per_second},
                 {"share_of_ceiling", per_second / ceiling},
                 {"sets", job.launches.size()},
                 {"error", error}});
  results_.push_back(std::move(result));
  device_.release_all();
}

nlohmann::json Bench::record() const {
  return {{"device", device_.describe()}, {"ceilings", ceilings_}, {"results", results_}};
}

}  // namespace xce::bench

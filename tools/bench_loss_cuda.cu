// forward_backward of linear cross-entropy on a GPU beside its three matrix products by cuBLAS's default algorithms:
// logits and dx in bf16, dW in fp32 with beta 1, all rows at once. In every round each contender in turn, the order
// rotating, runs back to back for --hold-ms: each is timed at the clocks that its own heat allows.
#include <cublas_v2.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tools/bench_loss_cuda.cuh"

namespace {

using namespace xce;
using bench::Buffer;
using bench::Problem;
using bench::Shape;

struct Options {
  std::vector<Shape> shapes = {
      {2048, 2048, 131072}, {4096, 4096, 128256}, {8192, 2048, 128256}, {8192, 4096, 128256}, {8192, 2304, 256000}};
  std::vector<int64_t> budgets_mib = {0, 1024, 256};  // 0: what 4096 rows need
  int rounds = 8;
  double hold_ms = 250;
  bool json = false, untuned = false, plans = false;
};

void check(cublasStatus_t status, const char* call) {
  XCE_CHECK(status == CUBLAS_STATUS_SUCCESS, call, cublasGetStatusName(status));
}

// As torch.mm calls them, which is what most people compare with.
class ThreeProducts {
 public:
  ThreeProducts(Problem& p, cudaStream_t stream)
      : p_(p), logits_(p.s.rows * p.s.vocab * 2), dlogits_(p.s.rows * p.s.vocab * 2), scratch_(size_t{32} << 20) {
    bench::fill_normal(stream, static_cast<Bf16*>(dlogits_.data), p.s.rows * p.s.vocab, 3, 1e-4f);
    check(cublasCreate(&handle_), "cublasCreate");
    check(cublasSetStream(handle_, stream), "cublasSetStream");
    check(cublasSetWorkspace(handle_, scratch_.data, scratch_.bytes), "cublasSetWorkspace");
  }
  ~ThreeProducts() { cublasDestroy(handle_); }
  ThreeProducts(const ThreeProducts&) = delete;

  void enqueue() {
    const int n = static_cast<int>(p_.s.rows), h = static_cast<int>(p_.s.hidden), v = static_cast<int>(p_.s.vocab);
    product(CUBLAS_OP_T, CUBLAS_OP_N, v, n, h, p_.weight.data, h, p_.x.data, h, 0, logits_.data, CUDA_R_16BF, v);
    product(CUBLAS_OP_N, CUBLAS_OP_N, h, n, v, p_.weight.data, h, dlogits_.data, v, 0, p_.dx.data, CUDA_R_16BF, h);
    product(CUBLAS_OP_N, CUBLAS_OP_T, h, v, n, p_.x.data, h, dlogits_.data, v, 1, p_.dweight.data, CUDA_R_32F, h);
  }

 private:
  void product(cublasOperation_t ta, cublasOperation_t tb, int m, int n, int k, const void* a, int lda, const void* b,
               int ldb, float beta, void* c, cudaDataType_t type, int ldc) {
    const float one = 1;
    check(cublasGemmEx(handle_, ta, tb, m, n, k, &one, a, CUDA_R_16BF, lda, b, CUDA_R_16BF, ldb, &beta, c, type, ldc,
                       CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
          "cublasGemmEx");
  }
  Problem& p_;
  Buffer logits_, dlogits_, scratch_;
  cublasHandle_t handle_ = nullptr;
};

struct Contender {
  std::string name;
  std::function<void()> enqueue;
  cudaStream_t stream;
  int64_t chunks = 0;
  size_t workspace_bytes = 0;
  bench::Errors errors{};
  std::vector<double> ms = {}, ratios = {};
};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Median time of the second half of back-to-back calls that together last about `hold_ms`.
double held(const Contender& c, double hold_ms) {
  constexpr int kBatch = 4;
  cudaEvent_t marks[kBatch + 1];
  for (cudaEvent_t& mark : marks) XCE_CUDA_CHECK(cudaEventCreate(&mark));
  std::vector<double> all;
  for (double spent = 0; spent < hold_ms;) {
    XCE_CUDA_CHECK(cudaEventRecord(marks[0], c.stream));
    for (int i = 0; i < kBatch; ++i) {
      c.enqueue();
      XCE_CUDA_CHECK(cudaEventRecord(marks[i + 1], c.stream));
    }
    XCE_CUDA_CHECK(cudaEventSynchronize(marks[kBatch]));
    for (int i = 0; i < kBatch; ++i) {
      float ms = 0;
      XCE_CUDA_CHECK(cudaEventElapsedTime(&ms, marks[i], marks[i + 1]));
      all.push_back(ms);
      spent += ms;
    }
  }
  for (cudaEvent_t mark : marks) cudaEventDestroy(mark);
  return median({all.begin() + static_cast<int64_t>(all.size() / 2), all.end()});
}

void report(const Options& o, const Shape& s, const Contender& c, bool baseline) {
  const double ms = median(c.ms), tflops = 6e-9 * double(s.rows) * double(s.hidden) * double(s.vocab) / ms;
  const auto [low, high] = std::minmax_element(c.ms.begin(), c.ms.end());
  if (o.json) {
    nlohmann::json record = {{"rows", s.rows},           {"hidden", s.hidden},   {"vocab", s.vocab},
                             {"dtype", "bf16"},          {"name", c.name},       {"time_ms", ms},
                             {"time_ms_min", *low},      {"time_ms_max", *high}, {"tflops", tflops},
                             {"ratio", median(c.ratios)}};
    if (!baseline)
      record.update({{"chunks", c.chunks},
                     {"workspace_bytes", c.workspace_bytes},
                     {"error_loss", c.errors.loss},
                     {"error_dx", c.errors.dx},
                     {"error_dweight", c.errors.dweight}});
    std::printf("%s\n", record.dump().c_str());
  } else {
    std::printf("  %-18s %8.3f ms [%.3f .. %.3f] %4.0f TFLOP/s", c.name.c_str(), ms, *low, *high, tflops);
    if (!baseline) {
      const auto [least, most] = std::minmax_element(c.ratios.begin(), c.ratios.end());
      std::printf("  ratio %.3f [%.3f .. %.3f]  %lld chunks, %.0f MiB, errors %.1e %.1e %.1e", median(c.ratios), *least,
                  *most, static_cast<long long>(c.chunks), double(c.workspace_bytes) / (1 << 20), c.errors.loss,
                  c.errors.dx, c.errors.dweight);
    }
    std::printf("\n");
  }
  std::fflush(stdout);
}

void race(const Options& o, const Shape& shape) {
  CudaDevice tuned(0), untuned(0);
  Problem p(shape, untuned);
  const bench::Reference reference(p, untuned);
  ThreeProducts products(p, untuned.exec().stream);
  std::vector<Contender> all = {
      {.name = "three products", .enqueue = [&] { products.enqueue(); }, .stream = untuned.exec().stream}};
  auto add = [&](CudaDevice& device, int64_t mib) {
    auto args = p.args(mib ? size_t(mib) << 20 : p.budget_of_rows(4096));
    const CudaExec exec = device.exec();
    p.give_workspace(exec, args);
    if (&device == &tuned) {
      start_gemm_tuning(exec);
      launch(exec, args);
      stop_gemm_tuning(exec);
    }
    args.grad.accumulate_dweight = false;
    launch(exec, args);
    device.synchronize();
    const bench::Errors errors = reference.errors(p);
    XCE_CHECK(errors.loss < 1e-5 && errors.dx < 4e-3 && errors.dweight < 4e-3, "a right result before it is timed",
              str("errors ", errors.loss, " ", errors.dx, " ", errors.dweight));
    args.grad.accumulate_dweight = true;
    all.push_back({.name = str(mib ? str(mib, " MiB") : "4096 rows", &device == &tuned ? "" : ", untuned"),
                   .enqueue = [exec, args] { launch(exec, args); },
                   .stream = exec.stream,
                   .chunks = chunks(exec, args).count,
                   .workspace_bytes = args.workspace.size_bytes,
                   .errors = errors});
  };
  for (int64_t mib : o.budgets_mib) add(tuned, mib);
  if (o.untuned) add(untuned, o.budgets_mib[0]);
  const GemmPlanCounts counts = gemm_plan_counts(tuned.exec());
  if (!o.json)
    std::printf("N %lld H %lld V %lld bf16: %lld products raced\n", static_cast<long long>(shape.rows),
                static_cast<long long>(shape.hidden), static_cast<long long>(shape.vocab),
                static_cast<long long>(counts.raced));
  if (o.plans) std::fprintf(stderr, "%s", gemm_plans_text(tuned.exec()).c_str());
  for (int round = 0; round <= o.rounds; ++round) {  // the first round only warms up
    for (size_t i = 0; i < all.size(); ++i) {
      Contender& c = all[(i + round) % all.size()];
      const double ms = held(c, o.hold_ms);
      if (round > 0) c.ms.push_back(ms);
    }
    if (round > 0)
      for (Contender& c : all) c.ratios.push_back(c.ms.back() / all[0].ms.back());
  }
  for (const Contender& c : all) report(o, shape, c, &c == &all[0]);
}

std::vector<int64_t> numbers(const std::string& text) {
  std::vector<int64_t> values;
  for (size_t at = 0; at <= text.size();) {
    const size_t comma = std::min(text.find(',', at), text.size());
    values.push_back(std::stoll(text.substr(at, comma - at)));
    at = comma + 1;
  }
  return values;
}

Options parse(int argc, char** argv) {
  Options o;
  bool own_shapes = false;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (name == "--json" || name == "--untuned" || name == "--plans") {
      (name == "--json" ? o.json : name == "--untuned" ? o.untuned : o.plans) = true;
      continue;
    }
    XCE_CHECK(i + 1 < argc, "a value after the option", name);
    const std::string value = argv[++i];
    if (name == "--shape") {
      const std::vector<int64_t> sides = numbers(value);
      XCE_CHECK(sides.size() == 3, "--shape N,H,V", value);
      if (!std::exchange(own_shapes, true)) o.shapes.clear();
      o.shapes.push_back({sides[0], sides[1], sides[2]});
    } else if (name == "--budgets-mib") {
      o.budgets_mib = numbers(value);
    } else if (name == "--rounds") {
      o.rounds = std::stoi(value);
      XCE_CHECK(o.rounds >= 1, "--rounds >= 1", value);
    } else if (name == "--hold-ms") {
      o.hold_ms = std::stod(value);
    } else {
      throw Error(ErrorCode::kUsage, str("unknown option ", name));
    }
  }
  return o;
}

}  // namespace

// bench_loss_cuda [--shape N,H,V]... [--budgets-mib M,M,...] [--rounds R] [--hold-ms T] [--untuned] [--plans] [--json]
// A budget of 0 MiB is what chunks of 4096 rows need.
int main(int argc, char** argv) {
  try {
    const Options o = parse(argc, argv);
    for (const Shape& shape : o.shapes) race(o, shape);
    return 0;
  } catch (const Error& error) {
    std::fprintf(stderr, "bench_loss_cuda: %s\n", error.what());
    return static_cast<int>(error.code());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_loss_cuda: %s\n", error.what());
    return 2;
  }
}

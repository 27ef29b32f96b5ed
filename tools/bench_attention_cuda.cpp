// Times causal attention in bf16 on the GPU: cuDNN with and without its deterministic backward, and our own kernels,
// after checking them against each other. TFLOP/s count the visible half of the scores: 2 seq_len^2 head_dim per head
// forward, 2.5 times that backward. Median and spread of rounds of back-to-back launches on random data.
// usage: bench_attention_cuda [rounds [launches in a round]]
#include <cuda_runtime_api.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "kernels/attention.h"
#include "kernels/base/cuda_check.h"
#include "kernels/cuda/sdpa/sdpa.h"

namespace {

using namespace xce;

struct Shape {
  int64_t batch, seq_len, heads, kv_heads, head_dim;
  int64_t rows() const { return batch * seq_len; }
  int64_t stride() const { return (heads + 2 * kv_heads) * head_dim; }
  double forward_flops() const { return 2.0 * batch * heads * seq_len * seq_len * head_dim; }
};

struct Memory {
  char* data = nullptr;
  size_t bytes;
  explicit Memory(size_t bytes) : bytes(bytes) {
    void* memory = nullptr;
    XCE_CUDA_CHECK(cudaMalloc(&memory, std::max<size_t>(bytes, 1)));
    data = static_cast<char*>(memory);
  }
  ~Memory() { cudaFree(data); }
  Memory(const Memory&) = delete;
  void randomize(unsigned seed) {
    std::mt19937 generator(seed);
    std::normal_distribution<float> normal;
    std::vector<Bf16> period(65537), values(bytes / 2);
    for (Bf16& x : period) x = Bf16(normal(generator));
    for (size_t i = 0; i < values.size(); ++i) values[i] = period[i % period.size()];
    XCE_CUDA_CHECK(cudaMemcpy(data, values.data(), bytes, cudaMemcpyHostToDevice));
  }
  std::vector<Bf16> host() const {
    std::vector<Bf16> values(bytes / 2);
    XCE_CUDA_CHECK(cudaMemcpy(values.data(), data, bytes, cudaMemcpyDeviceToHost));
    return values;
  }
};

double relative_error(const std::vector<Bf16>& got, const std::vector<Bf16>& want) {
  double error = 0, norm = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    const double g = float(got[i]), w = float(want[i]);
    error += (g - w) * (g - w), norm += w * w;
  }
  return std::sqrt(error / norm);
}

struct Options {
  int rounds, launches;
};

template <class F>
void report(const Options& options, const CudaExec& exec, const char* name, double flops, size_t workspace_bytes,
            F&& enqueue) {
  cudaEvent_t start, stop;
  XCE_CUDA_CHECK(cudaEventCreate(&start));
  XCE_CUDA_CHECK(cudaEventCreate(&stop));
  std::vector<double> times;
  for (int round = -1; round < options.rounds; ++round) {  // the first one warms up
    XCE_CUDA_CHECK(cudaEventRecord(start, exec.stream));
    for (int i = 0; i < options.launches; ++i) enqueue();
    XCE_CUDA_CHECK(cudaEventRecord(stop, exec.stream));
    XCE_CUDA_CHECK(cudaEventSynchronize(stop));
    float ms = 0;
    XCE_CUDA_CHECK(cudaEventElapsedTime(&ms, start, stop));
    if (round >= 0) times.push_back(ms / options.launches);
  }
  std::sort(times.begin(), times.end());
  std::printf("  %-34s %8.3f ms (%.3f to %.3f) %7.1f TFLOP/s, workspace %.1f MiB\n", name, times[times.size() / 2],
              times.front(), times.back(), flops / times[times.size() / 2] * 1e-9,
              static_cast<double>(workspace_bytes) / (1 << 20));
  std::fflush(stdout);
  XCE_CUDA_CHECK(cudaEventDestroy(start));
  XCE_CUDA_CHECK(cudaEventDestroy(stop));
}

void expect_close(const char* what, const std::vector<Bf16>& got, const std::vector<Bf16>& want) {
  const double error = relative_error(got, want);
  std::printf("  %s against our own kernels: relative error %.1e\n", what, error);
  if (!(error < 1.2e-2)) throw Error(ErrorCode::kRuntime, str(what, " is wrong"));
}

void bench(const Options& options, CudaExec exec, const Shape& s) {
  const int64_t width = s.heads * s.head_dim, kv_width = s.kv_heads * s.head_dim, stride = s.stride();
  Memory qkv(s.rows() * stride * 2), dqkv(qkv.bytes), o(s.rows() * width * 2), d_o(o.bytes);
  Memory lse(s.rows() * s.heads * sizeof(float));
  qkv.randomize(1), d_o.randomize(2);
  const double scale = 1 / std::sqrt(static_cast<double>(s.head_dim));
  AttentionForward f{qkv.data,
                     qkv.data + width * 2,
                     qkv.data + (width + kv_width) * 2,
                     stride,
                     o.data,
                     lse.data,
                     nullptr,
                     0,
                     s.batch,
                     s.seq_len,
                     s.heads,
                     s.kv_heads,
                     s.head_dim,
                     DType::kBf16,
                     scale};
  AttentionBackward b{f.q,
                      f.k,
                      f.v,
                      stride,
                      o.data,
                      lse.data,
                      d_o.data,
                      dqkv.data,
                      dqkv.data + width * 2,
                      dqkv.data + (width + kv_width) * 2,
                      stride,
                      nullptr,
                      0,
                      s.batch,
                      s.seq_len,
                      s.heads,
                      s.kv_heads,
                      s.head_dim,
                      DType::kBf16,
                      scale};
  std::printf("batch %ld seq_len %ld heads %ld/%ld head_dim %ld\n", long(s.batch), long(s.seq_len), long(s.heads),
              long(s.kv_heads), long(s.head_dim));

  std::vector<Bf16> own_o, own_dqkv;
  for (bool use_cudnn : {false, true}) {
    exec.use_cudnn = use_cudnn;
    const std::string kernels = attention_kernels(exec, f), backward_kernels = attention_kernels(exec, b);
    if (use_cudnn && kernels != "cuDNN") continue;
    Memory scratch(std::max(workspace_bytes(exec, f), workspace_bytes(exec, b)));
    f.workspace = b.workspace = scratch.data, f.workspace_size_bytes = b.workspace_size_bytes = scratch.bytes;
    launch(exec, f);
    launch(exec, b);
    XCE_CUDA_CHECK(cudaStreamSynchronize(exec.stream));
    if (!use_cudnn)
      own_o = o.host(), own_dqkv = dqkv.host();
    else
      expect_close("cuDNN's o", o.host(), own_o), expect_close("cuDNN's dq, dk, dv", dqkv.host(), own_dqkv);
    report(options, exec, (kernels + ", forward").c_str(), s.forward_flops(), workspace_bytes(exec, f),
           [&] { launch(exec, f); });
    report(options, exec, (backward_kernels + ", backward").c_str(), 2.5 * s.forward_flops(), workspace_bytes(exec, b),
           [&] { launch(exec, b); });
  }
  cuda::Sdpa free_order{f.q,    f.k,     f.v,     stride,    o.data,  lse.data,   d_o.data,   b.dq,  b.dk, b.dv,
                        stride, nullptr, s.batch, s.seq_len, s.heads, s.kv_heads, s.head_dim, scale, true, false};
  if (!cuda::sdpa_takes(exec, free_order)) return;
  Memory scratch(cuda::sdpa_workspace_bytes(exec, free_order));
  free_order.workspace = scratch.data;
  cuda::sdpa(exec, free_order);
  XCE_CUDA_CHECK(cudaStreamSynchronize(exec.stream));
  expect_close("cuDNN's dq, dk, dv in free order", dqkv.host(), own_dqkv);
  report(options, exec, "cuDNN, backward, free order", 2.5 * s.forward_flops(), scratch.bytes,
         [&] { cuda::sdpa(exec, free_order); });
}

}  // namespace

int main(int argc, char** argv) try {
  const Options options{argc > 1 ? std::atoi(argv[1]) : 5, argc > 2 ? std::atoi(argv[2]) : 10};
  CudaDevice device(0);
  for (const Shape& s : {Shape{4, 4096, 32, 8, 64}, Shape{4, 4096, 32, 8, 128}, Shape{2, 1024, 16, 16, 128}})
    bench(options, device.exec(), s);
} catch (const std::exception& error) {
  std::fprintf(stderr, "bench_attention_cuda: %s\n", error.what());
  return 1;
}

// What bench_loss_cuda times: random operands on the GPU, and the fp64 results that they are checked against first.
#pragma once

#include <cmath>
#include <utility>
#include <vector>

#include "kernels/base/cuda_check.h"
#include "kernels/cuda/gemm.cuh"
#include "kernels/linear_cross_entropy/linear_cross_entropy.h"

namespace xce::bench {

struct Shape {
  int64_t rows, hidden, vocab;
};

struct Buffer {
  void* data = nullptr;
  size_t bytes = 0;
  explicit Buffer(size_t bytes) : bytes(bytes) { XCE_CUDA_CHECK(cudaMalloc(&data, bytes)); }
  ~Buffer() { cudaFree(data); }
  Buffer(const Buffer&) = delete;
};

__device__ inline uint32_t mixed(uint64_t x) {
  x = (x ^ (x >> 33)) * 0xff51afd7ed558ccdu;
  x = (x ^ (x >> 33)) * 0xc4ceb9fe1a85ec53u;
  return static_cast<uint32_t>(x >> 32);
}
__global__ void normal_kernel(__nv_bfloat16* to, int64_t n, uint64_t seed, float stddev) {
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < n; i += gridDim.x * int64_t{blockDim.x}) {
    const uint64_t at = (seed << 56) + 2 * static_cast<uint64_t>(i);
    const float u = (static_cast<float>(mixed(at) >> 8) + 0.5f) / 16777216.f;
    const float angle = 6.2831853f / 16777216.f * static_cast<float>(mixed(at + 1) >> 8);
    to[i] = __float2bfloat16(stddev * sqrtf(-2 * logf(u)) * cosf(angle));
  }
}
inline void fill_normal(cudaStream_t stream, Bf16* to, int64_t n, uint64_t seed, float stddev) {
  normal_kernel<<<2048, 256, 0, stream>>>(reinterpret_cast<__nv_bfloat16*>(to), n, seed, stddev);
  cuda::check_launch("normal numbers");
}

struct Problem {
  Shape s;
  Buffer x, weight, dx, dweight, labels, loss;
  std::vector<int32_t> host_labels;
  std::vector<std::pair<size_t, void*>> workspaces;

  Problem(const Shape& shape, CudaDevice& device)
      : s(shape),
        x(s.rows * s.hidden * 2),
        weight(s.vocab * s.hidden * 2),
        dx(s.rows * s.hidden * 2),
        dweight(s.vocab * s.hidden * 4),
        labels(s.rows * sizeof(int32_t)),
        loss(sizeof(float)) {
    const cudaStream_t stream = device.exec().stream;
    fill_normal(stream, static_cast<Bf16*>(x.data), s.rows * s.hidden, 1, 1);
    fill_normal(stream, static_cast<Bf16*>(weight.data), s.vocab * s.hidden, 2, 0.02f);
    XCE_CUDA_CHECK(cudaMemsetAsync(dweight.data, 0, dweight.bytes, stream));
    uint64_t state = 1;
    for (int64_t i = 0; i < s.rows; ++i) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      host_labels.push_back(static_cast<int32_t>((state >> 33) % static_cast<uint64_t>(s.vocab)));
    }
    XCE_CUDA_CHECK(cudaMemcpy(labels.data, host_labels.data(), labels.bytes, cudaMemcpyDefault));
    device.synchronize();
  }
  ~Problem() {
    for (auto [bytes, data] : workspaces) cudaFree(data);
  }
  Problem(const Problem&) = delete;

  // Enough for chunks of `rows` rows over the whole vocabulary.
  size_t budget_of_rows(int64_t n) const {
    return static_cast<size_t>(n * (4 * (s.vocab + 8) + 2 * s.hidden + 64)) + (size_t{1} << 20);
  }
  LinearCrossEntropyForwardBackward args(size_t budget_bytes) const {
    return {.in = {.x = x.data,
                   .weight = weight.data,
                   .bias = nullptr,
                   .targets = {.index = labels.data},
                   .rows = s.rows,
                   .hidden = s.hidden,
                   .vocab = s.vocab,
                   .dtype = DType::kBf16},
            .options = {},
            .out = {.loss = loss.data},
            .upstream = {},
            .grad = {.dx = dx.data, .dweight = dweight.data, .accumulate_dweight = true},
            .workspace = {.budget_bytes = budget_bytes}};
  }
  void give_workspace(const CudaExec& exec, LinearCrossEntropyForwardBackward& args) {
    args.workspace.size_bytes = workspace_bytes(exec, args);
    XCE_CUDA_CHECK(cudaMalloc(&args.workspace.data, args.workspace.size_bytes));
    workspaces.emplace_back(args.workspace.size_bytes, args.workspace.data);
  }
};

__global__ void widen_kernel(const __nv_bfloat16* from, double* to, int64_t n) {
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < n; i += gridDim.x * int64_t{blockDim.x})
    to[i] = static_cast<double>(__bfloat162float(from[i]));
}

template <class F>
__device__ double block_reduce(double mine, double* shared, F&& join) {
  shared[threadIdx.x] = mine;
  __syncthreads();
  for (unsigned step = blockDim.x / 2; step > 0; step /= 2) {
    if (threadIdx.x < step) shared[threadIdx.x] = join(shared[threadIdx.x], shared[threadIdx.x + step]);
    __syncthreads();
  }
  const double all = shared[0];
  __syncthreads();
  return all;
}
// A block per row of logits, which become the gradients of the mean over `rows`.
__global__ void softmax_kernel(double* z, int64_t vocab, const int32_t* labels, double* losses, int64_t rows) {
  __shared__ double shared[256];
  z += blockIdx.x * vocab;
  const int32_t y = labels[blockIdx.x];
  double top = -INFINITY, sum = 0;
  for (int64_t v = threadIdx.x; v < vocab; v += blockDim.x) top = fmax(top, z[v]);
  top = block_reduce(top, shared, [](double a, double b) { return fmax(a, b); });
  for (int64_t v = threadIdx.x; v < vocab; v += blockDim.x) sum += exp(z[v] - top);
  sum = block_reduce(sum, shared, [](double a, double b) { return a + b; });
  if (threadIdx.x == 0) losses[blockIdx.x] = log(sum) - (z[y] - top);
  __syncthreads();
  for (int64_t v = threadIdx.x; v < vocab; v += blockDim.x)
    z[v] = (exp(z[v] - top) / sum - (v == y)) / static_cast<double>(rows);
}

struct Errors {
  double loss, dx, dweight;  // relative; of the gradients in the L2 norm
};

// The loss, dx of the first rows and dW of the first labels, in fp64 from the rounded operands, by blocks of rows.
class Reference {
 public:
  static constexpr int64_t kRows = 512, kLabels = 256;

  Reference(const Problem& p, CudaDevice& device) {
    const Shape& s = p.s;
    const CudaExec exec = device.exec();
    const int64_t block = std::min(kRows, s.rows), labels = std::min(kLabels, s.vocab);
    Buffer weight(s.vocab * s.hidden * 8), x(block * s.hidden * 8), z(block * s.vocab * 8), losses(block * 8);
    Buffer dx(block * s.hidden * 8), dweight(labels * s.hidden * 8);
    auto widen = [&](const void* from, int64_t first, Buffer& to, int64_t n) {
      widen_kernel<<<2048, 256, 0, exec.stream>>>(static_cast<const __nv_bfloat16*>(from) + first,
                                                  static_cast<double*>(to.data), n);
      cuda::check_launch("to fp64");
    };
    widen(p.weight.data, 0, weight, s.vocab * s.hidden);
    double loss = 0;
    for (int64_t first = 0; first < s.rows; first += block) {
      const int64_t n = std::min(block, s.rows - first);
      widen(p.x.data, first * s.hidden, x, n * s.hidden);
      product(exec, {x.data, weight.data, z.data, s.hidden, s.hidden, s.vocab, n, s.vocab, s.hidden, false, true});
      softmax_kernel<<<static_cast<unsigned>(n), 256, 0, exec.stream>>>(
          static_cast<double*>(z.data), s.vocab, static_cast<const int32_t*>(p.labels.data) + first,
          static_cast<double*>(losses.data), s.rows);
      cuda::check_launch("softmax in fp64");
      product(exec, {z.data, x.data, dweight.data, s.vocab, s.hidden, s.hidden, labels, s.hidden, n, true, false},
              first > 0);
      if (first == 0)
        product(exec, {z.data, weight.data, dx.data, s.vocab, s.hidden, s.hidden, n, s.hidden, s.vocab, false, false});
      device.synchronize();
      for (double row : host<double>(losses.data, n)) loss += row;
    }
    loss_ = loss / static_cast<double>(s.rows);
    dx_ = host<double>(dx.data, block * s.hidden);
    dweight_ = host<double>(dweight.data, labels * s.hidden);
  }

  Errors errors(const Problem& p) const {
    const double loss = host<float>(p.loss.data, 1)[0];
    return {std::fabs(loss - loss_) / loss_, relative(host<Bf16>(p.dx.data, dx_.size()), dx_),
            relative(host<float>(p.dweight.data, dweight_.size()), dweight_)};
  }

 private:
  static void product(const CudaExec& exec, cuda::Gemm g, bool add = false) {
    g.in = g.out = DType::kF64;
    g.addend = add ? g.c : nullptr;
    cuda::gemm(exec, g);
  }
  template <class T>
  static std::vector<T> host(const void* data, size_t n) {
    std::vector<T> values(n);
    XCE_CUDA_CHECK(cudaMemcpy(values.data(), data, n * sizeof(T), cudaMemcpyDefault));
    return values;
  }
  template <class T>
  static double relative(const std::vector<T>& got, const std::vector<double>& want) {
    double error = 0, norm = 0;
    for (size_t i = 0; i < want.size(); ++i) {
      error += std::pow(static_cast<double>(got[i]) - want[i], 2);
      norm += want[i] * want[i];
    }
    return std::sqrt(error / norm);
  }
  double loss_;
  std::vector<double> dx_, dweight_;
};

}  // namespace xce::bench

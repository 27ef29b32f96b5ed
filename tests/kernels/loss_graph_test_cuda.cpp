// The graph law of the losses: captured in global mode and replayed they give bit for bit what eager launches give, and
// labels that change between replays change counts and gradients. Arrays are exact device allocations.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "kernels/base/cuda_check.h"
#include "kernels/cross_entropy/cross_entropy.h"
#include "kernels/linear_cross_entropy/linear_cross_entropy.h"
#include "tests/support/array.h"

namespace xce {
namespace {

using test::Array;

class Losses {
 public:
  Losses(const CudaExec& exec, DType dtype, int64_t rows, int64_t hidden, int64_t vocab, size_t budget)
      : exec_(exec), dtype_(dtype), rows_(rows), hidden_(hidden), vocab_(vocab), budget_(budget) {
    const size_t t = size_of(dtype), a = size_of(accum_dtype(dtype));
    add("x", rows * hidden * t), add("weight", vocab * hidden * t), add("labels", rows * sizeof(int32_t));
    add("dx", rows * hidden * t), add("dweight", vocab * hidden * a), add("dbias", vocab * a);
    add("loss", a), add("row_loss", rows * a), add("offset", rows * a), add("logsum", rows * a);
    add("count", sizeof(int64_t)), add("weight_sum", sizeof(double)), add("n_valid", sizeof(int64_t));
    add("logits", rows * vocab * t), add("dlogits", rows * vocab * t), add("ce_loss", a);
    auto call = linear();
    add("workspace", workspace_bytes(exec, call));
    auto plain = cross_entropy();
    add("ce_workspace", workspace_bytes(exec, plain));
    upload("x", Array::normal(dtype, rows * hidden, 1));
    upload("weight", Array::normal(dtype, vocab * hidden, 2));
    upload("logits", Array::normal(dtype, rows * vocab, 3, 2));
  }
  ~Losses() {
    for (auto& [name, memory] : memory_) cudaFree(memory.data);
  }
  Losses(const Losses&) = delete;

  void set_labels(int64_t ignored) {
    std::vector<int32_t> labels(rows_);
    for (int64_t i = 0; i < rows_; ++i) labels[i] = i < ignored ? -100 : static_cast<int32_t>(i * i % vocab_);
    XCE_CUDA_CHECK(cudaMemcpy(at("labels"), labels.data(), labels.size() * sizeof(int32_t), cudaMemcpyDefault));
  }
  void enqueue() {
    launch(exec_, LossCount{.targets = targets(),
                            .rows = rows_,
                            .vocab_global = vocab_,
                            .n_valid = static_cast<int64_t*>(at("count")),
                            .weight_sum = static_cast<double*>(at("weight_sum"))});
    launch(exec_, linear());
    launch(exec_, cross_entropy());
  }
  // Everything but scratch.
  std::map<std::string, std::vector<unsigned char>> bits() {
    XCE_CUDA_CHECK(cudaStreamSynchronize(exec_.stream));
    std::map<std::string, std::vector<unsigned char>> all;
    for (auto& [name, memory] : memory_) {
      if (name.find("workspace") != std::string::npos) continue;
      all[name].resize(memory.bytes);
      XCE_CUDA_CHECK(cudaMemcpy(all[name].data(), memory.data, memory.bytes, cudaMemcpyDefault));
    }
    return all;
  }
  void poison() {
    for (const char* name : {"dx", "dweight", "dbias", "loss", "row_loss", "dlogits", "ce_loss", "n_valid"})
      XCE_CUDA_CHECK(cudaMemset(at(name), 0xFF, memory_.at(name).bytes));
    XCE_CUDA_CHECK(cudaDeviceSynchronize());
  }
  int64_t n_valid() { return *reinterpret_cast<int64_t*>(bits()["n_valid"].data()); }

 private:
  struct Memory {
    void* data;
    size_t bytes;
  };
  void add(const std::string& name, size_t bytes) {
    void* data = nullptr;
    XCE_CUDA_CHECK(cudaMalloc(&data, bytes));
    XCE_CUDA_CHECK(cudaMemset(data, 0xFF, bytes));
    memory_[name] = {data, bytes};
  }
  void* at(const std::string& name) { return memory_.count(name) ? memory_[name].data : nullptr; }
  void upload(const std::string& name, const Array& array) {
    XCE_CUDA_CHECK(cudaMemcpy(at(name), array.data(), memory_[name].bytes, cudaMemcpyDefault));
  }
  LossTargets targets() { return {.index = at("labels")}; }
  LinearCrossEntropyForwardBackward linear() {
    return {.in = {.x = at("x"),
                   .weight = at("weight"),
                   .bias = nullptr,
                   .targets = targets(),
                   .rows = rows_,
                   .hidden = hidden_,
                   .vocab = vocab_,
                   .dtype = dtype_},
            .options = {.denominator = static_cast<double*>(at("weight_sum"))},
            .out = {.loss = at("loss"),
                    .row_loss = at("row_loss"),
                    .offset = at("offset"),
                    .logsum = at("logsum"),
                    .n_valid = static_cast<int64_t*>(at("n_valid"))},
            .upstream = {},
            .grad = {.dx = at("dx"), .dweight = at("dweight"), .dbias = at("dbias")},
            .workspace = {.budget_bytes = budget_, .data = at("workspace"), .size_bytes = budget_}};
  }
  CrossEntropyForwardBackward cross_entropy() {
    return {.in = {.logits = at("logits"), .targets = targets(), .rows = rows_, .vocab = vocab_, .dtype = dtype_},
            .options = {},
            .out = {.loss = at("ce_loss")},
            .upstream = {},
            .dlogits = at("dlogits"),
            .workspace = at("ce_workspace"),
            .workspace_size_bytes = size_t{1} << 30};
  }

  CudaExec exec_;
  DType dtype_;
  int64_t rows_, hidden_, vocab_;
  size_t budget_;
  std::map<std::string, Memory> memory_;
};

void check_replay(DType dtype, int64_t vocab, size_t budget) {
  SCOPED_TRACE(str(name_of(dtype), " V ", vocab, " budget ", budget));
  const CudaExec exec = std::get<CudaExec>(test::gpu_execs()[0]);
  const int64_t rows = 70;
  Losses losses(exec, dtype, rows, 32, vocab, budget);
  losses.set_labels(7);
  losses.enqueue();
  const auto first = losses.bits();
  losses.set_labels(60);
  losses.enqueue();
  const auto second = losses.bits();
  EXPECT_NE(first.at("dweight"), second.at("dweight"));

  losses.poison();
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  XCE_CUDA_CHECK(cudaStreamBeginCapture(exec.stream, cudaStreamCaptureModeGlobal));
  losses.enqueue();
  XCE_CUDA_CHECK(cudaStreamEndCapture(exec.stream, &graph));
  XCE_CUDA_CHECK(cudaGraphInstantiate(&executable, graph, 0));
  XCE_CUDA_CHECK(cudaGraphDestroy(graph));
  EXPECT_EQ(losses.n_valid(), -1) << "capture ran something";
  for (int ignored : {7, 60}) {
    losses.poison();
    losses.set_labels(ignored);
    XCE_CUDA_CHECK(cudaGraphLaunch(executable, exec.stream));
    EXPECT_EQ(losses.n_valid(), rows - ignored);
    const auto replayed = losses.bits();
    for (auto& [name, bytes] : ignored == 7 ? first : second)
      EXPECT_TRUE(bytes == replayed.at(name)) << name << ", " << ignored << " rows ignored";
  }
  XCE_CUDA_CHECK(cudaGraphExecDestroy(executable));
}

TEST(CudaLossGraph, ReplayEqualsEagerAndFollowsTheLabels) {
  if (test::gpu_execs().empty()) GTEST_SKIP() << "needs a GPU";
  for (DType dtype : {DType::kF32, DType::kBf16}) {
    for (size_t budget : {size_t{64} << 20, size_t{300} << 10, size_t{40} << 10}) check_replay(dtype, 1000, budget);
    check_replay(dtype, 40000, size_t{64} << 20);  // rows wide enough for a cluster of blocks
  }
}

}  // namespace
}  // namespace xce

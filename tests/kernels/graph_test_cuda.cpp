// The graph law: a small step of every op, captured in global mode and replayed, gives bit for bit what eager launches
// give, over steps whose rate and counters change. Arrays are exact device allocations, which a memory checker guards.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "kernels/adamw.h"
#include "kernels/base/cuda_check.h"
#include "kernels/elementwise.h"
#include "kernels/embedding.h"
#include "kernels/linear.h"
#include "kernels/norm2.h"
#include "kernels/rmsnorm.h"
#include "kernels/rope.h"
#include "kernels/step_control.h"
#include "kernels/swiglu.h"
#include "tests/support/array.h"

namespace xce {
namespace {

using test::Array;

struct DeviceMemory {
  void* data = nullptr;
  size_t bytes;
  explicit DeviceMemory(size_t bytes) : bytes(bytes) {
    XCE_CUDA_CHECK(cudaMalloc(&data, std::max<size_t>(bytes, 1)));
    XCE_CUDA_CHECK(cudaMemset(data, 0xFF, bytes));  // NaN in every dtype
  }
  ~DeviceMemory() { cudaFree(data); }
  DeviceMemory(const DeviceMemory&) = delete;
};

struct Shape {
  int64_t rows, hidden, inner, vocab;  // inner: columns of swiglu's result
};

// embedding -> rmsnorm -> linear to (gate, up) -> rope over the gate -> swiglu -> linear back, plus the embedding; its
// output is its own gradient; then clipping and AdamW of all weights.
class MiniStep {
 public:
  MiniStep(const CudaExec& exec, DType dtype, Shape s) : exec_(exec), s_(s), dtype_(dtype), accum_(accum_dtype(dtype)) {
    const size_t t = size_of(dtype), a = size_of(accum_), rows = s.rows;
    const int64_t n = weight_count();
    for (auto [name, bytes] : std::map<std::string, size_t>{{"master", n * a},
                                                            {"m", n * a},
                                                            {"v", n * a},
                                                            {"grad", n * a},
                                                            {"compute", n * t},
                                                            {"decay", decay_blocks() * sizeof(float)},
                                                            {"tokens", rows * sizeof(int32_t)},
                                                            {"table", s.rows * s.inner * a},
                                                            {"embedded", rows * s.hidden * t},
                                                            {"normed", rows * s.hidden * t},
                                                            {"rstd", rows * a},
                                                            {"gate_up", rows * 2 * s.inner * t},
                                                            {"dgate_up", rows * 2 * s.inner * t},
                                                            {"y", rows * s.inner * t},
                                                            {"dy", rows * s.inner * t},
                                                            {"out", rows * s.hidden * t},
                                                            {"dnormed", rows * s.hidden * t},
                                                            {"dembedded", rows * s.hidden * t},
                                                            {"wide", rows * s.hidden * sizeof(double)},
                                                            {"loss", sizeof(double)},
                                                            {"norm2", sizeof(double)},
                                                            {"state", sizeof(StepState)}})
      memory_.try_emplace(name, bytes);
    memory_.try_emplace("norm_scratch", workspace_bytes(exec_, norm_backward()));
    memory_.try_emplace("norm2_scratch", workspace_bytes(exec_, norm2()));
    reset();
  }

  void reset() {
    const int64_t n = weight_count();
    upload("master", Array::normal(accum_, n, 1, 0.2));
    for (const char* name : {"m", "v"}) upload(name, Array::filled(accum_, n, 0));
    upload("compute", Array::filled(dtype_, n, 0.125));
    upload("table", Array::filled(accum_, s_.rows * s_.inner, 0.7));
    upload("loss", Array::filled(DType::kF64, 1, 2.0));
    Array decay = Array::filled(DType::kF32, decay_blocks(), 0.1);
    upload("decay", decay);
    std::vector<int32_t> tokens(s_.rows);
    for (int64_t r = 0; r < s_.rows; ++r) tokens[r] = static_cast<int32_t>(r % 7 == 6 ? -1 : r * r % s_.vocab);
    copy("tokens", tokens.data());
    StepState state;
    copy("state", &state);
  }

  void enqueue() {
    char* compute = static_cast<char*>(at("compute"));
    const size_t t = size_of(dtype_);
    const void *weight_norm = compute + embedding_count() * t,
               *weight_in = compute + (embedding_count() + s_.hidden) * t;
    const void* weight_out = compute + (embedding_count() + s_.hidden + 2 * s_.inner * s_.hidden) * t;
    launch(exec_, EmbeddingForward{compute, tokens(), at("embedded"), s_.rows, s_.vocab, s_.hidden, dtype_});
    launch(exec_, RmsNormForward{at("embedded"), weight_norm, at("normed"), at("rstd"), s_.rows, s_.hidden, dtype_});
    launch(exec_,
           LinearForward{at("normed"), weight_in, at("gate_up"), nullptr, 0, s_.rows, s_.hidden, 2 * s_.inner, dtype_});
    Rope rope{at("gate_up"), 2 * s_.inner, at("table"), s_.rows, s_.rows, 1, s_.inner, dtype_};
    launch(exec_, rope);
    launch(exec_, SwigluForward{at("gate_up"), at("y"), s_.rows, s_.inner, dtype_});
    launch(exec_, LinearForward{at("y"), weight_out, at("out"), nullptr, 0, s_.rows, s_.inner, s_.hidden, dtype_,
                                at("embedded")});
    launch(exec_, LinearBackward{at("y"), weight_out, at("out"), at("dy"), gradient(weight_out), nullptr, 0, s_.rows,
                                 s_.inner, s_.hidden, dtype_});
    launch(exec_, SwigluBackward{at("gate_up"), at("dy"), at("dgate_up"), s_.rows, s_.inner, dtype_});
    rope.x = at("dgate_up");
    rope.inverse = true;
    launch(exec_, rope);
    launch(exec_, LinearBackward{at("normed"), weight_in, at("dgate_up"), at("dnormed"), gradient(weight_in), nullptr,
                                 0, s_.rows, s_.hidden, 2 * s_.inner, dtype_});
    RmsNormBackward norm = norm_backward();
    norm.weight = weight_norm;
    norm.dweight = gradient(weight_norm);
    launch(exec_, norm);
    const int64_t n = s_.rows * s_.hidden;
    launch(exec_, Add{at("dembedded"), at("out"), at("dembedded"), n, dtype_});
    launch(exec_, Convert{at("dembedded"), at("wide"), n, dtype_, DType::kF64});
    launch(exec_, Convert{at("wide"), at("dembedded"), n, DType::kF64, dtype_});
    launch(exec_, EmbeddingBackward{at("dembedded"), tokens(), at("grad"), s_.rows, s_.vocab, s_.hidden, dtype_});
    launch(exec_, norm2());
    Schedule schedule{.lr = 0.01, .warmup = 2, .total = 10};
    launch(exec_,
           StepControl{static_cast<double*>(at("loss")), static_cast<double*>(at("norm2")), state(), schedule, 1.0});
    launch(exec_, AdamW{at("master"), at("m"), at("v"), at("grad"), at("compute"), static_cast<float*>(at("decay")),
                        state(), weight_count(), dtype_});
    launch(exec_, Fill{at("wide"), n, DType::kF64, 0.5});
  }

  std::map<std::string, std::vector<unsigned char>> bits() {
    XCE_CUDA_CHECK(cudaStreamSynchronize(exec_.stream));
    std::map<std::string, std::vector<unsigned char>> all;
    for (auto& [name, memory] : memory_) {
      all[name].resize(memory.bytes);
      XCE_CUDA_CHECK(cudaMemcpy(all[name].data(), memory.data, memory.bytes, cudaMemcpyDefault));
    }
    return all;
  }
  StepState host_state() {
    StepState host;
    std::vector<unsigned char> bytes = bits()["state"];
    std::memcpy(&host, bytes.data(), sizeof(host));
    return host;
  }

 private:
  int64_t embedding_count() const { return s_.vocab * s_.hidden; }
  int64_t weight_count() const { return embedding_count() + s_.hidden + 3 * s_.inner * s_.hidden; }
  int64_t decay_blocks() const { return (weight_count() + AdamW::kBlock - 1) / AdamW::kBlock; }
  void* at(const std::string& name) { return memory_.at(name).data; }
  void* at_or_null(const std::string& name) { return memory_.count(name) ? at(name) : nullptr; }
  size_t bytes_or_zero(const std::string& name) { return memory_.count(name) ? memory_.at(name).bytes : 0; }
  int32_t* tokens() { return static_cast<int32_t*>(at("tokens")); }
  StepState* state() { return static_cast<StepState*>(at("state")); }
  // The place in "grad" of a weight in "compute".
  void* gradient(const void* weight) {
    size_t element = (static_cast<const char*>(weight) - static_cast<char*>(at("compute"))) / size_of(dtype_);
    return static_cast<char*>(at("grad")) + element * size_of(accum_);
  }
  RmsNormBackward norm_backward() {
    return {at("embedded"),
            nullptr,
            at("rstd"),
            at("dnormed"),
            at("dembedded"),
            nullptr,
            at_or_null("norm_scratch"),
            bytes_or_zero("norm_scratch"),
            s_.rows,
            s_.hidden,
            dtype_};
  }
  Norm2 norm2() {
    return {at("grad"),
            static_cast<double*>(at("norm2")),
            at_or_null("norm2_scratch"),
            bytes_or_zero("norm2_scratch"),
            weight_count(),
            accum_};
  }
  void copy(const std::string& name, const void* from) {
    XCE_CUDA_CHECK(cudaMemcpy(at(name), from, memory_.at(name).bytes, cudaMemcpyDefault));
  }
  void upload(const std::string& name, const Array& array) { copy(name, array.data()); }

  CudaExec exec_;
  Shape s_;
  DType dtype_, accum_;
  std::map<std::string, DeviceMemory> memory_;
};

class Graph {
 public:
  template <class F>
  Graph(cudaStream_t stream, F&& enqueue) : stream_(stream) {
    cudaGraph_t graph = nullptr;
    XCE_CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    enqueue();
    XCE_CUDA_CHECK(cudaStreamEndCapture(stream, &graph));
    XCE_CUDA_CHECK(cudaGraphInstantiate(&executable_, graph, 0));
    XCE_CUDA_CHECK(cudaGraphDestroy(graph));
  }
  ~Graph() { cudaGraphExecDestroy(executable_); }
  Graph(const Graph&) = delete;
  void replay() { XCE_CUDA_CHECK(cudaGraphLaunch(executable_, stream_)); }

 private:
  cudaStream_t stream_;
  cudaGraphExec_t executable_ = nullptr;
};

TEST(CudaGraph, ReplayEqualsEagerBitForBit) {
  if (test::gpu_execs().empty()) GTEST_SKIP() << "needs a GPU";
  const CudaExec exec = std::get<CudaExec>(test::gpu_execs()[0]);
  for (DType dtype : {DType::kF32, DType::kBf16, DType::kF64})
    for (Shape shape : {Shape{96, 64, 128, 40}, Shape{33, 31, 46, 11}, Shape{1500, 128, 64, 3}}) {
      MiniStep step(exec, dtype, shape);
      const auto before = step.bits();
      for (int i = 0; i < 3; ++i) step.enqueue();
      const auto eager = step.bits();
      EXPECT_EQ(step.host_state().updates, 3);
      EXPECT_GT(step.host_state().lr, 0.009);
      for (const char* name : {"master", "m", "v", "compute", "out"})
        EXPECT_NE(eager.at(name), before.at(name)) << name;

      step.reset();
      Graph graph(exec.stream, [&] { step.enqueue(); });
      EXPECT_EQ(step.host_state().updates, 0) << "capture ran something";
      for (int i = 0; i < 3; ++i) graph.replay();
      const auto replayed = step.bits();
      for (auto& [name, bytes] : eager)
        EXPECT_TRUE(bytes == replayed.at(name)) << name << " " << name_of(dtype) << " rows " << shape.rows;
    }
}

}  // namespace
}  // namespace xce

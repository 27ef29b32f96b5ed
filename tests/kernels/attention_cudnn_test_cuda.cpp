// Attention by cuDNN against our own kernels, at shapes too large for a reference; its repeatability, eager and within
// a graph; and which kernels are taken for what. Small shapes have their reference in attention_test.cpp.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <string>
#include <vector>

#include "kernels/attention.h"
#include "kernels/base/cuda_check.h"
#include "tests/support/array.h"
#include "tests/support/compare.h"

namespace xce {
namespace {

struct Sizes {
  int64_t batch, seq_len, heads, kv_heads, head_dim;
};
const Sizes kTrainer = {4, 4096, 32, 8, 64};
const Sizes kShapes[] = {kTrainer,          {2, 1024, 16, 16, 128}, {1, 4096, 32, 8, 128}, {1, 2, 2, 1, 8},
                         {3, 7, 4, 1, 16},  {1, 129, 2, 2, 64},     {2, 1000, 6, 2, 40},   {2, 1023, 16, 4, 24},
                         {5, 65, 4, 4, 96}, {1, 333, 12, 3, 120},   {1, 8191, 4, 2, 64}};

std::string name(const Sizes& s) {
  return str("batch ", s.batch, " seq_len ", s.seq_len, " heads ", s.heads, "/", s.kv_heads, " head_dim ", s.head_dim);
}

class DeviceBytes {
 public:
  explicit DeviceBytes(size_t bytes) : bytes_(bytes) {
    XCE_CUDA_CHECK(cudaMalloc(&data_, std::max<size_t>(bytes, 1)));
    poison();
  }
  ~DeviceBytes() { cudaFree(data_); }
  DeviceBytes(const DeviceBytes&) = delete;
  void poison() { XCE_CUDA_CHECK(cudaMemset(data_, 0xFF, bytes_)); }  // NaN
  char* data() const { return static_cast<char*>(data_); }
  size_t size() const { return bytes_; }
  template <class T>
  std::vector<T> host() const {
    std::vector<T> values(bytes_ / sizeof(T));
    XCE_CUDA_CHECK(cudaMemcpy(values.data(), data_, values.size() * sizeof(T), cudaMemcpyDeviceToHost));
    return values;
  }

 private:
  void* data_ = nullptr;
  size_t bytes_;
};

// Normal values in bf16; a prime number of different ones, so that no two rows are alike.
void fill_normal(const DeviceBytes& memory, uint64_t seed) {
  static constexpr int64_t kPeriod = 65537;
  const test::Array values = test::Array::normal(DType::kBf16, kPeriod, seed);
  std::vector<uint16_t> bits(memory.size() / 2);
  for (size_t i = 0; i < bits.size(); ++i) bits[i] = static_cast<const uint16_t*>(values.data())[i % kPeriod];
  XCE_CUDA_CHECK(cudaMemcpy(memory.data(), bits.data(), memory.size(), cudaMemcpyHostToDevice));
}

struct Results {
  std::vector<uint16_t> o, dqkv;
  std::vector<float> lse;
  bool operator==(const Results&) const = default;
};

// q, k and v in one array, as the trainer has them.
class Case {
 public:
  Case(const CudaExec& exec, const Sizes& s)
      : s_(s),
        qkv_(rows() * stride() * 2),
        dqkv_(qkv_.size()),
        o_(rows() * s.heads * s.head_dim * 2),
        d_o_(o_.size()),
        lse_(rows() * s.heads * sizeof(float)),
        workspace_(std::max(workspace_bytes(exec, forward()), workspace_bytes(exec, backward()))) {
    fill_normal(qkv_, 1);
    fill_normal(d_o_, 2);
  }
  AttentionForward forward() const {
    char* q = qkv_.data();
    return {.q = q,
            .k = q + k_offset(),
            .v = q + v_offset(),
            .qkv_stride = stride(),
            .o = o_.data(),
            .lse = lse_.data(),
            .workspace = nullptr,
            .workspace_size_bytes = 0,
            .batch = s_.batch,
            .seq_len = s_.seq_len,
            .heads = s_.heads,
            .kv_heads = s_.kv_heads,
            .head_dim = s_.head_dim,
            .dtype = DType::kBf16,
            .scale = 1 / std::sqrt(static_cast<double>(s_.head_dim))};
  }
  AttentionBackward backward() const {
    const AttentionForward f = forward();
    char* dq = dqkv_.data();
    return {.q = f.q,
            .k = f.k,
            .v = f.v,
            .qkv_stride = stride(),
            .o = o_.data(),
            .lse = lse_.data(),
            .d_o = d_o_.data(),
            .dq = dq,
            .dk = dq + k_offset(),
            .dv = dq + v_offset(),
            .dqkv_stride = stride(),
            .workspace = nullptr,
            .workspace_size_bytes = 0,
            .batch = s_.batch,
            .seq_len = s_.seq_len,
            .heads = s_.heads,
            .kv_heads = s_.kv_heads,
            .head_dim = s_.head_dim,
            .dtype = DType::kBf16,
            .scale = f.scale};
  }
  void poison() {
    for (DeviceBytes* memory : {&dqkv_, &o_, &lse_, &workspace_}) memory->poison();
  }
  void enqueue(const CudaExec& exec) const {
    AttentionForward f = forward();
    f.workspace = workspace_.data(), f.workspace_size_bytes = workspace_.size();
    launch(exec, f);
    AttentionBackward b = backward();
    b.workspace = workspace_.data(), b.workspace_size_bytes = workspace_.size();
    launch(exec, b);
  }
  Results results(const CudaExec& exec) const {
    XCE_CUDA_CHECK(cudaStreamSynchronize(exec.stream));
    return {o_.host<uint16_t>(), dqkv_.host<uint16_t>(), lse_.host<float>()};
  }
  Results run(const CudaExec& exec) {
    poison();
    enqueue(exec);
    return results(exec);
  }

 private:
  int64_t rows() const { return s_.batch * s_.seq_len; }
  int64_t stride() const { return (s_.heads + 2 * s_.kv_heads) * s_.head_dim; }
  int64_t k_offset() const { return s_.heads * s_.head_dim * 2; }
  int64_t v_offset() const { return k_offset() + s_.kv_heads * s_.head_dim * 2; }

  Sizes s_;
  DeviceBytes qkv_, dqkv_, o_, d_o_, lse_, workspace_;
};

std::vector<double> values(const std::vector<uint16_t>& bits) {
  std::vector<double> out;
  for (uint16_t b : bits) out.push_back(Bf16(std::bit_cast<Bf16>(b)));
  return out;
}
std::vector<double> values(const std::vector<float>& x) {
  return {x.begin(), x.end()};
}

class AttentionCudnn : public ::testing::Test {
 protected:
  void SetUp() override {
    if (test::gpu_execs().empty()) GTEST_SKIP() << "needs a GPU";
    exec_ = own_ = std::get<CudaExec>(test::gpu_execs()[0]);
    own_.use_cudnn = false;
    if (takes(kTrainer) != "cuDNN") GTEST_SKIP() << "this build has no cuDNN";
  }
  std::string takes(const Sizes& s) {
    const Case c(exec_, s);
    const std::string forward = attention_kernels(exec_, c.forward()),
                      backward = attention_kernels(exec_, c.backward());
    return forward == backward ? forward : forward + " then " + backward;
  }
  CudaExec exec_{}, own_{};
};

TEST_F(AttentionCudnn, EqualsOurOwnKernels) {
  for (const Sizes& s : kShapes) {
    SCOPED_TRACE(name(s));
    EXPECT_EQ(takes(s), "cuDNN");
    Case c(exec_, s);
    const Results cudnn = c.run(exec_), own = c.run(own_);
    EXPECT_LT(test::relative_l2(values(cudnn.o), values(own.o)), 2 * test::tolerance(DType::kBf16));
    EXPECT_LT(test::relative_l2(values(cudnn.dqkv), values(own.dqkv)), 3 * test::tolerance(DType::kBf16));
    EXPECT_LT(test::relative_l2(values(cudnn.lse), values(own.lse)), 3 * test::tolerance(DType::kF32));
  }
}

TEST_F(AttentionCudnn, BothGiveTheSameBitsEveryTime) {
  for (const Sizes& s : kShapes) {
    SCOPED_TRACE(name(s));
    Case c(exec_, s);
    for (const CudaExec& exec : {exec_, own_}) {
      const Results first = c.run(exec);
      for (int i = 0; i < 3; ++i) EXPECT_TRUE(c.run(exec) == first) << (exec.use_cudnn ? "cuDNN" : "own");
    }
  }
}

TEST_F(AttentionCudnn, AReplayedGraphGivesTheBitsOfEagerLaunches) {
  for (const Sizes& s : {Sizes{2, 1024, 16, 16, 128}, Sizes{4, 2048, 32, 8, 64}, Sizes{3, 333, 4, 2, 40}})
    for (const CudaExec& exec : {exec_, own_}) {
      SCOPED_TRACE(name(s));
      Case c(exec, s);
      const Results eager = c.run(exec);
      c.poison();
      cudaGraph_t graph = nullptr;
      cudaGraphExec_t executable = nullptr;
      XCE_CUDA_CHECK(cudaStreamBeginCapture(exec.stream, cudaStreamCaptureModeGlobal));
      c.enqueue(exec);
      XCE_CUDA_CHECK(cudaStreamEndCapture(exec.stream, &graph));
      XCE_CUDA_CHECK(cudaGraphInstantiate(&executable, graph, 0));
      XCE_CUDA_CHECK(cudaGraphDestroy(graph));
      EXPECT_FALSE(c.results(exec) == eager) << "capture ran something";
      for (int i = 0; i < 2; ++i) {
        c.poison();
        XCE_CUDA_CHECK(cudaGraphLaunch(executable, exec.stream));
        EXPECT_TRUE(c.results(exec) == eager);
      }
      XCE_CUDA_CHECK(cudaGraphExecDestroy(executable));
    }
}

// More than the workspace of one piece holds: the batch goes through in several, which change no bit.
TEST_F(AttentionCudnn, SeveralPiecesEqualOurOwnKernels) {
  for (const Sizes& s : {Sizes{5, 4096, 32, 8, 64}, Sizes{2, 16384, 10, 5, 32}}) {
    SCOPED_TRACE(name(s));
    Case c(exec_, s);
    EXPECT_LT(workspace_bytes(exec_, c.backward()), size_t{9} << 29);
    EXPECT_EQ(takes(s), "cuDNN");
    const Results cudnn = c.run(exec_);
    EXPECT_TRUE(c.run(exec_) == cudnn);
    const Results own = c.run(own_);
    EXPECT_LT(test::relative_l2(values(cudnn.dqkv), values(own.dqkv)), 3 * test::tolerance(DType::kBf16));
  }
}

// A memory plan is made where there is no device: the sizes alone decide.
TEST_F(AttentionCudnn, APlanNeedsNeitherPointersNorADevice) {
  CudaExec planning{};
  planning.sm_count = exec_.sm_count, planning.cc_major = exec_.cc_major, planning.cc_minor = exec_.cc_minor;
  for (const Sizes& s : kShapes) {
    const Case c(exec_, s);
    AttentionForward f = c.forward();
    AttentionBackward b = c.backward();
    const size_t forward_bytes = workspace_bytes(exec_, f), backward_bytes = workspace_bytes(exec_, b);
    f.q = f.k = f.v = f.o = f.lse = nullptr;
    b.q = b.k = b.v = b.o = b.lse = b.d_o = b.dq = b.dk = b.dv = nullptr;
    EXPECT_EQ(workspace_bytes(planning, f), forward_bytes);
    EXPECT_EQ(workspace_bytes(planning, b), backward_bytes);
    EXPECT_STREQ(attention_kernels(planning, b), "cuDNN");
  }
}

TEST_F(AttentionCudnn, TheRuleSaysWhichKernelsAreTaken) {
  EXPECT_EQ(takes({1, 64, 2, 1, 12}), "own, CUDA cores");
  EXPECT_EQ(takes({1, 64, 2, 1, 13}), "own, CUDA cores");
  EXPECT_EQ(takes({3, 1, 2, 1, 8}), "own, tensor cores");
  const Case c(exec_, {2, 256, 4, 2, 64});
  EXPECT_STREQ(attention_kernels(own_, c.forward()), "own, tensor cores");
  AttentionForward f = c.forward();
  f.dtype = DType::kF32;
  EXPECT_STREQ(attention_kernels(exec_, f), "own, CUDA cores");
  f = c.forward();
  f.k = static_cast<const char*>(f.k) + 2;
  EXPECT_STREQ(attention_kernels(exec_, f), "own, CUDA cores");
  AttentionBackward b = c.backward();
  b.dqkv_stride += 1;
  EXPECT_STREQ(attention_kernels(exec_, b), "own, CUDA cores");
  b = c.backward();
  b.seq_len = 65536;  // the scores of one head alone are 8 GiB
  EXPECT_STREQ(attention_kernels(exec_, b), "own, tensor cores");
  CudaExec other = exec_;
  other.cc_major = 8;
  EXPECT_STREQ(attention_kernels(other, c.backward()), "own, tensor cores");
}

}  // namespace
}  // namespace xce

// The graph law through the C API: after prepare alone, calls on the caller's stream are captured in global mode, and
// replays give what eager calls give and follow labels that changed. Arrays are exact device allocations.
#include <cuda_runtime_api.h>

#include <cstring>
#include <map>

#include "kernels/base/cuda_check.h"
#include "tests/capi/c_args.h"
#include "tests/support/array.h"

namespace xce::test {
namespace {

constexpr int64_t kRows = 70, kHidden = 32, kVocab = 1000;

class Stream {
 public:
  Stream() { XCE_CUDA_CHECK(cudaStreamCreateWithFlags(&handle_, cudaStreamNonBlocking)); }
  ~Stream() { cudaStreamDestroy(handle_); }
  Stream(const Stream&) = delete;
  operator cudaStream_t() const { return handle_; }

 private:
  cudaStream_t handle_ = nullptr;
};

// Both losses and a count, on arrays of the device.
class Calls {
 public:
  explicit Calls(xce_context* context) : context_(context) {
    upload("x", Array::normal(DType::kBf16, kRows * kHidden, 1));
    upload("weight", Array::normal(DType::kBf16, kVocab * kHidden, 2));
    upload("logits", Array::normal(DType::kBf16, kRows * kVocab, 3, 2));
    at("weight_sum", 8);
    auto linear = linear_args();
    EXPECT_TRUE(ok(xce_linear_cross_entropy_workspace_bytes(context, XCE_FORWARD_BACKWARD, &linear, &linear_bytes_)));
    auto plain = plain_args();
    EXPECT_TRUE(ok(xce_cross_entropy_workspace_bytes(context, XCE_FORWARD_BACKWARD, &plain, &plain_bytes_)));
  }
  ~Calls() {
    for (auto& [name, memory] : memory_) cudaFree(memory.data);
  }
  Calls(const Calls&) = delete;

  void set_labels(int64_t ignored) {
    std::vector<int32_t> labels(kRows);
    for (int64_t i = 0; i < kRows; ++i) labels[i] = i < ignored ? -100 : static_cast<int32_t>(i * i % kVocab);
    XCE_CUDA_CHECK(cudaMemcpy(at("labels", kRows * 4), labels.data(), kRows * 4, cudaMemcpyDefault));
  }
  void prepare() {
    auto linear = linear_args();
    auto plain = plain_args();
    EXPECT_TRUE(ok(xce_linear_cross_entropy_prepare(context_, XCE_FORWARD_BACKWARD, &linear)));
    EXPECT_TRUE(ok(xce_cross_entropy_prepare(context_, XCE_FORWARD_BACKWARD, &plain)));
    EXPECT_TRUE(ok(xce_loss_prepare(context_, XCE_BFLOAT16)));
  }
  void enqueue() {
    auto linear = linear_args();
    auto plain = plain_args();
    xce_loss_count_args count{};
    count.struct_size = sizeof(count);
    count.loss = linear.loss;
    count.loss.weight_sum = static_cast<double*>(at("weight_sum", 8));
    EXPECT_TRUE(ok(xce_loss_count(context_, &count)));
    linear.loss.denominator = count.loss.weight_sum;
    EXPECT_TRUE(ok(xce_linear_cross_entropy_forward_backward(context_, &linear)));
    EXPECT_TRUE(ok(xce_cross_entropy_forward_backward(context_, &plain)));
  }
  // Results; poisoned after they were read.
  std::map<std::string, std::vector<unsigned char>> take() {
    XCE_CUDA_CHECK(cudaDeviceSynchronize());
    std::map<std::string, std::vector<unsigned char>> all;
    for (const char* name : {"dx", "dweight", "loss", "plain_loss", "dlogits", "n_valid", "weight_sum"}) {
      Memory& memory = memory_.at(name);
      all[name].resize(memory.bytes);
      XCE_CUDA_CHECK(cudaMemcpy(all[name].data(), memory.data, memory.bytes, cudaMemcpyDefault));
      XCE_CUDA_CHECK(cudaMemset(memory.data, 0xFF, memory.bytes));
    }
    XCE_CUDA_CHECK(cudaDeviceSynchronize());
    return all;
  }

 private:
  struct Memory {
    void* data;
    size_t bytes;
  };
  void* at(const std::string& name, size_t bytes) {
    if (!memory_.count(name)) {
      void* data = nullptr;
      XCE_CUDA_CHECK(cudaMalloc(&data, bytes));
      XCE_CUDA_CHECK(cudaMemset(data, 0xFF, bytes));
      memory_[name] = {data, bytes};
    }
    return memory_[name].data;
  }
  void upload(const std::string& name, const Array& array) {
    const size_t bytes = array.size() * size_of(array.dtype());
    XCE_CUDA_CHECK(cudaMemcpy(at(name, bytes), array.data(), bytes, cudaMemcpyDefault));
  }
  xce_loss loss() {
    xce_loss to{};
    to.rows = kRows, to.vocab = kVocab, to.dtype = XCE_BFLOAT16, to.label_dtype = XCE_INT32;
    to.labels = at("labels", kRows * 4);
    return to;
  }
  xce_linear_cross_entropy_args linear_args() {
    xce_linear_cross_entropy_args args{};
    args.struct_size = sizeof(args);
    args.loss = loss();
    args.loss.loss = at("loss", 4);
    args.loss.n_valid = static_cast<int64_t*>(at("n_valid", 8));
    args.hidden = kHidden;
    args.x = at("x", 0), args.weight = at("weight", 0);
    args.dx = at("dx", kRows * kHidden * 2), args.dweight = at("dweight", kVocab * kHidden * 4);
    args.workspace_budget_bytes = size_t{1} << 20;
    args.workspace_size_bytes = linear_bytes_;
    if (linear_bytes_) args.workspace = at("workspace", linear_bytes_);
    return args;
  }
  xce_cross_entropy_args plain_args() {
    xce_cross_entropy_args args{};
    args.struct_size = sizeof(args);
    args.loss = loss();
    args.loss.loss = at("plain_loss", 4);
    args.logits = at("logits", 0), args.dlogits = at("dlogits", kRows * kVocab * 2);
    args.workspace_size_bytes = plain_bytes_;
    if (plain_bytes_) args.workspace = at("plain_workspace", plain_bytes_);
    return args;
  }

  xce_context* context_;
  size_t linear_bytes_ = 0, plain_bytes_ = 0;
  std::map<std::string, Memory> memory_;
};

TEST(CApiGraph, CapturedAfterPrepareAlone) {
  if (gpu_execs().empty()) GTEST_SKIP() << "needs a GPU";
  Stream stream;
  CContext context(true), eager_context(true);
  ASSERT_TRUE(ok(xce_context_set_tuning(context, 0)));
  ASSERT_TRUE(ok(xce_context_set_stream(context, stream)));
  Calls calls(context), eager(eager_context);
  calls.set_labels(3);
  calls.prepare();
  calls.take();
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  XCE_CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  calls.enqueue();
  XCE_CUDA_CHECK(cudaStreamEndCapture(stream, &graph));
  XCE_CUDA_CHECK(cudaGraphInstantiate(&executable, graph, 0));
  XCE_CUDA_CHECK(cudaGraphDestroy(graph));
  const auto untouched = calls.take();
  for (unsigned char byte : untouched.at("dweight")) ASSERT_EQ(byte, 0xFF) << "capture ran something";
  for (int ignored : {7, 60}) {
    calls.set_labels(ignored);
    XCE_CUDA_CHECK(cudaGraphLaunch(executable, stream));
    const auto replayed = calls.take();
    int64_t n_valid = 0;
    std::memcpy(&n_valid, replayed.at("n_valid").data(), 8);
    EXPECT_EQ(n_valid, kRows - ignored);
    eager.set_labels(ignored);
    eager.enqueue();
    for (auto& [name, bytes] : eager.take()) EXPECT_TRUE(bytes == replayed.at(name)) << name;
  }
  XCE_CUDA_CHECK(cudaGraphExecDestroy(executable));
}

// What one context raced another takes over, and computes the same bits with.
TEST(CApiTuning, TravelsAsText) {
  if (gpu_execs().empty()) GTEST_SKIP() << "needs a GPU";
  CContext tuned(true), other(true);
  Calls first(tuned), second(other);
  first.set_labels(5), second.set_labels(5);
  first.prepare();
  first.take();
  first.enqueue();
  size_t bytes = 0;
  ASSERT_TRUE(ok(xce_context_tuning_text(tuned, nullptr, 0, &bytes)));
  std::string text(bytes, 'x');
  EXPECT_EQ(xce_context_tuning_text(tuned, text.data(), bytes - 1, &bytes), XCE_ERROR_INVALID_ARGUMENT);
  ASSERT_TRUE(ok(xce_context_tuning_text(tuned, text.data(), text.size(), &bytes)));
  EXPECT_EQ(std::strlen(text.c_str()) + 1, bytes);
  EXPECT_EQ(xce_context_load_tuning_text(other, "nonsense"), XCE_ERROR_INVALID_ARGUMENT) << xce_last_error();
  ASSERT_TRUE(ok(xce_context_load_tuning_text(other, text.c_str())));
  second.enqueue();
  EXPECT_TRUE(first.take() == second.take());
}

TEST(CApiGraph, LeavesTheCurrentDeviceAlone) {
  if (gpu_execs().empty()) GTEST_SKIP() << "needs a GPU";
  const int last = xce_cuda_device_count() - 1;
  XCE_CUDA_CHECK(cudaSetDevice(last));
  {
    CContext context(true);
    EXPECT_TRUE(ok(xce_loss_prepare(context, XCE_FLOAT32)));
  }
  int now = -1;
  XCE_CUDA_CHECK(cudaGetDevice(&now));
  EXPECT_EQ(now, last);
  XCE_CUDA_CHECK(cudaSetDevice(0));
}

}  // namespace
}  // namespace xce::test

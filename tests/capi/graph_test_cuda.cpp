// The graph law through the C API: after prepare alone, calls on the caller's stream are captured in global mode, and
// replays give what eager calls give and follow labels and weights that changed. Arrays are exact device allocations.
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

// Both losses and a count, on arrays of the device; `general`: with all options, over given logits probabilities.
class Calls {
 public:
  explicit Calls(xce_context* context, bool general = false) : context_(context), general_(general) {
    if (general) {
      upload("bias", Array::normal(DType::kBf16, kVocab, 4));
      upload("class_weights", Array::filled(DType::kF32, kVocab, 0.5));
      upload("probabilities", Array::filled(DType::kF16, kRows * kVocab, 0x1p-10));
      set_token_weights(1);
    }
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
  void set_token_weights(double of_every_third) {
    Array weights = Array::filled(DType::kF32, kRows, 2);
    for (int64_t i = 0; i < kRows; i += 3) weights.set(i, of_every_third);
    upload("token_weights", weights);
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
    std::vector<std::string> names = {"dx", "dweight", "loss", "plain_loss", "dlogits", "n_valid", "weight_sum"};
    if (general_) names.insert(names.end(), {"dbias", "row_entropy", "argmax", "n_correct", "plain_argmax"});
    for (const std::string& name : names) {
      const Memory& memory = memory_.at(name);
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
  void set_options(xce_loss& to) {
    to.label_smoothing = 0.1, to.softcap = 20, to.logit_scale = 0.5, to.z_loss = 1e-3;
    to.class_weights = at("class_weights", 0), to.token_weights = at("token_weights", 0);
  }
  xce_linear_cross_entropy_args linear_args() {
    xce_linear_cross_entropy_args args{};
    args.struct_size = sizeof(args);
    args.loss = loss();
    args.loss.loss = at("loss", 4);
    args.loss.n_valid = static_cast<int64_t*>(at("n_valid", 8));
    if (general_) {
      set_options(args.loss);
      args.loss.row_entropy = at("row_entropy", kRows * 4);
      args.loss.argmax = static_cast<int64_t*>(at("argmax", kRows * 8));
      args.loss.n_correct = static_cast<int64_t*>(at("n_correct", 8));
      args.bias = at("bias", 0), args.dbias = at("dbias", kVocab * 4);
    }
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
    if (general_) {
      set_options(args.loss);
      args.loss.labels = nullptr, args.loss.probabilities = at("probabilities", 0);
      args.loss.probability_dtype = XCE_FLOAT16;
      args.loss.argmax = static_cast<int64_t*>(at("plain_argmax", kRows * 8));
    }
    args.logits = at("logits", 0), args.dlogits = at("dlogits", kRows * kVocab * 2);
    args.workspace_size_bytes = plain_bytes_;
    if (plain_bytes_) args.workspace = at("plain_workspace", plain_bytes_);
    return args;
  }

  xce_context* context_;
  bool general_;
  size_t linear_bytes_ = 0, plain_bytes_ = 0;
  std::map<std::string, Memory> memory_;
};

class CApiGraph : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Options, CApiGraph, ::testing::Bool());

TEST_P(CApiGraph, CapturedAfterPrepareAlone) {
  if (gpu_execs().empty()) GTEST_SKIP() << "needs a GPU";
  Stream stream;
  CContext context(true), eager_context(true);
  ASSERT_TRUE(ok(xce_context_set_tuning(context, 0)));
  ASSERT_TRUE(ok(xce_context_set_stream(context, stream)));
  Calls calls(context, GetParam()), eager(eager_context, GetParam());
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
    if (GetParam()) calls.set_token_weights(ignored);
    XCE_CUDA_CHECK(cudaGraphLaunch(executable, stream));
    const auto replayed = calls.take();
    int64_t n_valid = 0;
    std::memcpy(&n_valid, replayed.at("n_valid").data(), 8);
    EXPECT_EQ(n_valid, kRows - ignored);
    eager.set_labels(ignored);
    if (GetParam()) eager.set_token_weights(ignored);
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

TEST(CApiDevice, StaysTheCallers) {
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

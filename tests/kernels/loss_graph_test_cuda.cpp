// The graph law of the losses: every call with every option, captured in global mode and replayed, gives bit for bit
// what eager launches give, also after labels, weights, probabilities and upstream gradients changed in place. Arrays
// are exact device allocations.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
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

struct Option {
  std::string name;
  bool bias = false, class_weights = false, token_weights = false, probabilities = false, row_results = false;
  bool own_mean = false;  // else the mean's denominator is what LossCount says
  Reduction reduction = Reduction::kMean;
  double z_loss = 0, label_smoothing = 0, softcap = 0, logit_scale = 1;
  DType probability_type = DType::kF32;
  bool accumulate = false, dx_in_accum_dtype = false, dweight_in_dtype = false, allow_tf32 = false;
  int64_t pad = 0;              // elements between rows of gradients and probabilities
  int64_t upstream_stride = 1;  // of reduction none
};
void PrintTo(const Option& option, std::ostream* to) {
  *to << option.name;
}
std::vector<Option> options() {
  std::vector<Option> all = {
      {.name = "plain"},
      {.name = "own_mean", .own_mean = true},
      {.name = "sum", .reduction = Reduction::kSum},
      {.name = "rows", .reduction = Reduction::kNone},
      {.name = "rows_strided", .reduction = Reduction::kNone, .upstream_stride = 3},
      {.name = "rows_expanded", .reduction = Reduction::kNone, .upstream_stride = 0},
      {.name = "bias", .bias = true},
      {.name = "class_weights", .class_weights = true},
      {.name = "token_weights", .token_weights = true},
      {.name = "z_loss", .z_loss = 0.01},
      {.name = "smoothing", .label_smoothing = 0.1},
      {.name = "softcap", .softcap = 3},
      {.name = "logit_scale", .logit_scale = 0.5},
      {.name = "row_results", .row_results = true},
      {.name = "accumulate", .accumulate = true},
      {.name = "dx_in_accum_dtype", .dx_in_accum_dtype = true},
      {.name = "dweight_in_dtype", .dweight_in_dtype = true},
      {.name = "padded", .pad = 5},
      {.name = "tf32", .allow_tf32 = true},
  };
  for (DType type : {DType::kF32, DType::kBf16, DType::kF16, DType::kF64})
    all.push_back(
        {.name = std::string("probabilities_") + name_of(type), .probabilities = true, .probability_type = type});
  Option most{.name = "most"};
  most.bias = most.class_weights = most.token_weights = most.row_results = most.own_mean = true;
  most.z_loss = 0.01, most.label_smoothing = 0.1, most.softcap = 3, most.logit_scale = 0.5;
  most.accumulate = most.dx_in_accum_dtype = true, most.pad = 8;
  all.push_back(most);
  most.name = "most_of_probabilities", most.probabilities = most.dweight_in_dtype = true, most.accumulate = false;
  all.push_back(most);
  return all;
}

struct Case {
  DType dtype;
  int64_t rows, hidden, vocab;
  size_t budget_bytes;
  Option option;
};

// Device arrays and every call on them.
class Losses {
 public:
  using Bits = std::map<std::string, std::vector<unsigned char>>;

  Losses(const CudaExec& exec, const Case& c) : exec_(exec), c_(c), o_(c.option) {
    const size_t t = size_of(c.dtype), a = size_of(accum_dtype(c.dtype));
    const int64_t rows = c.rows, hidden = c.hidden, vocab = c.vocab;
    add("x", rows * hidden * t), add("weight", vocab * hidden * t), add("bias", vocab * t);
    add("logits", rows * vocab * t), add("labels", rows * sizeof(int32_t));
    add("probabilities", o_.probabilities ? rows * (vocab + o_.pad) * size_of(o_.probability_type) : 1);
    add("class_weights", vocab * a), add("token_weights", rows * a);
    add("upstream", (rows * std::max<int64_t>(o_.upstream_stride, 1)) * a);
    add("count n_valid", 8), add("count weight_sum", 8);
    for (const char* call : {"forward", "both", "finish", "merged", "ce forward", "ce both"}) {
      for (const char* name : {" loss", " z_loss"}) add(call + std::string(name), a);
      for (const char* name : {" row_loss", " offset", " logsum", " row_max", " entropy"})
        add(call + std::string(name), rows * a);
      for (const char* name : {" total", " n_correct", " n_valid", " weight_sum", " out_of_range", " first"})
        add(call + std::string(name), 8);
      add(call + std::string(" argmax"), rows * 8);
    }
    const size_t weight_bytes = o_.dweight_in_dtype ? t : a;
    for (const char* call : {"backward", "both", "finish"}) {
      add(call + std::string(" dx"), rows * (hidden + o_.pad) * (o_.dx_in_accum_dtype ? a : t));
      add(call + std::string(" dweight"), vocab * (hidden + o_.pad) * weight_bytes);
      add(call + std::string(" dbias"), vocab * weight_bytes);
    }
    for (const char* name : {"ce backward dlogits", "ce both dlogits"}) add(name, rows * (vocab + o_.pad) * t);
    for (const char* name : {"all statistics", "chunk statistics"}) add(name, kLossStatistics * rows * sizeof(double));
    workspace_bytes_ = std::max({workspace_bytes(exec, forward()), workspace_bytes(exec, backward()),
                                 workspace_bytes(exec, both("both")), workspace_bytes(exec, ce_forward()),
                                 workspace_bytes(exec, ce_backward()), workspace_bytes(exec, ce_both())});
    add("workspace", workspace_bytes_);
    upload("x", Array::normal(c.dtype, rows * hidden, 1));
    upload("weight", Array::normal(c.dtype, vocab * hidden, 2, 1 / std::sqrt(static_cast<double>(hidden))));
    upload("bias", Array::normal(c.dtype, vocab, 3));
    upload("logits", Array::normal(c.dtype, rows * vocab, 4, 2));
  }
  ~Losses() {
    for (auto& [name, memory] : memory_) cudaFree(memory.data);
  }
  Losses(const Losses&) = delete;

  // Everything that may change between replays: `ignored` rows and values that follow the seed.
  void set(int64_t ignored, uint64_t seed) {
    const DType accum = accum_dtype(c_.dtype);
    std::vector<int32_t> labels(c_.rows);
    for (int64_t i = 0; i < c_.rows; ++i)
      labels[i] = i < ignored ? -100 : static_cast<int32_t>((i * i + static_cast<int64_t>(seed)) % c_.vocab);
    XCE_CUDA_CHECK(cudaMemcpy(at("labels"), labels.data(), labels.size() * sizeof(int32_t), cudaMemcpyDefault));
    Array token_weights = positive(accum, c_.rows, seed);
    for (int64_t i = 0; i < ignored; ++i) token_weights.set(i, 0);
    upload("token_weights", token_weights);
    upload("class_weights", positive(accum, c_.vocab, seed + 1));
    upload("upstream", Array::normal(accum, memory_["upstream"].bytes / size_of(accum), seed + 2));
    if (o_.probabilities)
      upload("probabilities", positive(o_.probability_type, c_.rows * (c_.vocab + o_.pad), seed + 3, 1.0 / c_.vocab));
  }
  // Results that no call has written; those that are added to are small positive numbers.
  void reset() {
    for (auto& [name, memory] : memory_) {
      if (!is_result(name)) continue;
      const bool added_to = name.ends_with(" total") || (o_.accumulate && is_gradient(name));
      XCE_CUDA_CHECK(cudaMemset(memory.data, added_to ? 0x3F : 0xFF, memory.bytes));
    }
    XCE_CUDA_CHECK(cudaDeviceSynchronize());
  }
  void enqueue() {
    launch(exec_, LossCount{.targets = targets(),
                            .rows = c_.rows,
                            .vocab_global = c_.vocab,
                            .n_valid = static_cast<int64_t*>(at("count n_valid")),
                            .weight_sum = static_cast<double*>(at("count weight_sum")),
                            .class_weights = loss_options().class_weights,
                            .token_weights = loss_options().token_weights,
                            .dtype = c_.dtype});
    launch(exec_, forward());
    launch(exec_, LossFromStatistics{.statistics = static_cast<const double*>(at("all statistics")),
                                     .targets = targets(),
                                     .rows = c_.rows,
                                     .vocab_global = c_.vocab,
                                     .dtype = c_.dtype,
                                     .options = loss_options(),
                                     .out = outputs("merged")});
    launch(exec_, backward());
    launch(exec_, both("both"));
    by_hand();
    launch(exec_, ce_forward());
    launch(exec_, ce_backward());
    launch(exec_, ce_both());
  }
  Bits results() {
    XCE_CUDA_CHECK(cudaStreamSynchronize(exec_.stream));
    Bits all;
    for (auto& [name, memory] : memory_) {
      if (!is_result(name)) continue;
      all[name].resize(memory.bytes);
      XCE_CUDA_CHECK(cudaMemcpy(all[name].data(), memory.data, memory.bytes, cudaMemcpyDefault));
    }
    return all;
  }
  static bool is_gradient(const std::string& name) {
    return name.ends_with(" dx") || name.ends_with(" dweight") || name.ends_with(" dbias");
  }

 private:
  struct Memory {
    void* data;
    size_t bytes;
  };

  static bool is_result(const std::string& name) { return name.find(' ') != std::string::npos; }
  static Array positive(DType dtype, int64_t n, uint64_t seed, double scale = 1) {
    Array a = Array::normal(dtype, n, seed);
    for (int64_t i = 0; i < n; ++i) a.set(i, scale * (0.1 + std::fabs(a[i])));
    return a;
  }
  void add(const std::string& name, size_t bytes) {
    Memory& memory = memory_[name] = {nullptr, bytes};
    XCE_CUDA_CHECK(cudaMalloc(&memory.data, bytes));
    XCE_CUDA_CHECK(cudaMemset(memory.data, 0xFF, bytes));
  }
  void* at(const std::string& name) { return memory_.count(name) ? memory_[name].data : nullptr; }
  void upload(const std::string& name, const Array& array) {
    ASSERT_EQ(array.size() * size_of(array.dtype()), memory_[name].bytes) << name;
    XCE_CUDA_CHECK(cudaMemcpy(at(name), array.data(), memory_[name].bytes, cudaMemcpyDefault));
  }

  LossTargets targets() {
    if (!o_.probabilities) return {.index = at("labels")};
    return {.probabilities = at("probabilities"),
            .probability_type = o_.probability_type,
            .ld_probabilities = c_.vocab + o_.pad};
  }
  LossOptions loss_options() {
    const bool by_pointer = o_.reduction == Reduction::kMean && !o_.own_mean;
    return {.reduction = o_.reduction,
            .z_loss = o_.z_loss,
            .label_smoothing = o_.label_smoothing,
            .softcap = o_.softcap,
            .logit_scale = o_.logit_scale,
            .class_weights = o_.class_weights ? at("class_weights") : nullptr,
            .token_weights = o_.token_weights || o_.probabilities ? at("token_weights") : nullptr,
            .denominator = by_pointer ? static_cast<double*>(at("count weight_sum")) : nullptr};
  }
  LossOutputs outputs(const std::string& call) {
    auto integer = [&](const char* name) { return static_cast<int64_t*>(at(call + name)); };
    const bool rows = o_.row_results;
    return {.loss = at(call + " loss"),
            .loss_total = static_cast<double*>(at(call + " total")),
            .row_loss = at(call + " row_loss"),
            .offset = at(call + " offset"),
            .logsum = at(call + " logsum"),
            .z_loss = at(call + " z_loss"),
            .row_max = at(call + " row_max"),
            .row_entropy = rows ? at(call + " entropy") : nullptr,
            .argmax = rows ? integer(" argmax") : nullptr,
            .n_correct = rows && !o_.probabilities ? integer(" n_correct") : nullptr,
            .n_valid = integer(" n_valid"),
            .weight_sum = static_cast<double*>(at(call + " weight_sum")),
            .out_of_range = integer(" out_of_range"),
            .first_out_of_range = integer(" first")};
  }
  LossUpstream upstream() { return {at("upstream"), o_.upstream_stride}; }
  LossWorkspace workspace() { return {c_.budget_bytes, at("workspace"), workspace_bytes_}; }
  LinearCrossEntropyInputs inputs() {
    return {.x = at("x"),
            .weight = at("weight"),
            .bias = o_.bias ? at("bias") : nullptr,
            .targets = targets(),
            .rows = c_.rows,
            .hidden = c_.hidden,
            .vocab = c_.vocab,
            .dtype = c_.dtype,
            .allow_tf32 = o_.allow_tf32};
  }
  LinearCrossEntropyGradients gradients(const std::string& call) {
    return {.dx = at(call + " dx"),
            .dweight = at(call + " dweight"),
            .dbias = at(call + " dbias"),
            .accumulate_dx = o_.accumulate,
            .accumulate_dweight = o_.accumulate,
            .dx_in_accum_dtype = o_.dx_in_accum_dtype,
            .dweight_in_dtype = o_.dweight_in_dtype,
            .ld_dx = c_.hidden + o_.pad,
            .ld_dweight = c_.hidden + o_.pad};
  }
  LinearCrossEntropyForward forward() {
    return {.in = inputs(),
            .options = loss_options(),
            .out = outputs("forward"),
            .workspace = workspace(),
            .statistics = static_cast<double*>(at("all statistics"))};
  }
  LinearCrossEntropyBackward backward() {
    return {.in = inputs(),
            .options = loss_options(),
            .offset = at("forward offset"),
            .logsum = at("forward logsum"),
            .upstream = upstream(),
            .grad = gradients("backward"),
            .workspace = workspace()};
  }
  LinearCrossEntropyForwardBackward both(const std::string& call) {
    return {.in = inputs(),
            .options = loss_options(),
            .out = outputs(call),
            .upstream = upstream(),
            .grad = gradients(call),
            .workspace = workspace()};
  }
  // As ranks of a sharded head do it, here with the only shard.
  void by_hand() {
    const LinearCrossEntropyForwardBackward call = both("finish");
    const LossChunks cut = chunks(exec_, call);
    auto* statistics = static_cast<double*>(at("chunk statistics"));
    for (int64_t i = 0; i < cut.count; ++i) {
      const int64_t rows = std::min(cut.rows_per_chunk, c_.rows - i * cut.rows_per_chunk);
      launch(exec_, LinearCrossEntropyBegin{.call = call, .chunk = i, .statistics = statistics});
      launch(exec_, LossMergeStatistics{.sets = statistics, .merged = statistics, .count = 1, .rows = rows});
      launch(exec_, LinearCrossEntropyFinish{.call = call, .chunk = i, .statistics = statistics});
    }
  }
  CrossEntropyInputs ce_inputs() { return {at("logits"), targets(), c_.rows, c_.vocab, c_.dtype}; }
  CrossEntropyForward ce_forward() {
    return {ce_inputs(), loss_options(), outputs("ce forward"), nullptr, at("workspace"), workspace_bytes_};
  }
  CrossEntropyBackward ce_backward() {
    return {.in = ce_inputs(),
            .options = loss_options(),
            .offset = at("ce forward offset"),
            .logsum = at("ce forward logsum"),
            .upstream = upstream(),
            .dlogits = at("ce backward dlogits"),
            .ld_dlogits = c_.vocab + o_.pad,
            .workspace = at("workspace"),
            .workspace_size_bytes = workspace_bytes_};
  }
  CrossEntropyForwardBackward ce_both() {
    return {.in = ce_inputs(),
            .options = loss_options(),
            .out = outputs("ce both"),
            .upstream = upstream(),
            .dlogits = at("ce both dlogits"),
            .ld_dlogits = c_.vocab + o_.pad,
            .workspace = at("workspace"),
            .workspace_size_bytes = workspace_bytes_};
  }

  CudaExec exec_;
  Case c_;
  Option o_;
  size_t workspace_bytes_ = 0;
  std::map<std::string, Memory> memory_;
};

int64_t integer(const Losses::Bits& bits, const std::string& name) {
  int64_t value = 0;
  std::memcpy(&value, bits.at(name).data(), sizeof(value));
  return value;
}

void check_replay(const Case& c) {
  SCOPED_TRACE(str(name_of(c.dtype), " V ", c.vocab, " budget ", c.budget_bytes));
  const CudaExec exec = std::get<CudaExec>(test::gpu_execs()[0]);
  Losses losses(exec, c);
  std::vector<Losses::Bits> eager;
  for (int64_t ignored : {7, 60}) {
    losses.set(ignored, 100 + ignored);
    losses.reset();
    losses.enqueue();
    eager.push_back(losses.results());
    for (const char* call : {"count", "forward", "both", "finish", "merged", "ce forward", "ce both"})
      EXPECT_EQ(integer(eager.back(), call + std::string(" n_valid")), c.rows - ignored) << call;
  }
  for (auto& [name, bytes] : eager[0]) {
    if (Losses::is_gradient(name) || name.ends_with(" loss") || name.ends_with(" dlogits")) {
      EXPECT_NE(bytes, eager[1].at(name)) << name << " does not follow its inputs";
    }
  }

  losses.reset();
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  XCE_CUDA_CHECK(cudaStreamBeginCapture(exec.stream, cudaStreamCaptureModeGlobal));
  losses.enqueue();
  XCE_CUDA_CHECK(cudaStreamEndCapture(exec.stream, &graph));
  XCE_CUDA_CHECK(cudaGraphInstantiate(&executable, graph, 0));
  XCE_CUDA_CHECK(cudaGraphDestroy(graph));
  EXPECT_EQ(integer(losses.results(), "both n_valid"), -1) << "capture ran something";
  for (size_t i : {0, 1}) {
    const int64_t ignored = i == 0 ? 7 : 60;
    losses.set(ignored, 100 + ignored);
    losses.reset();
    XCE_CUDA_CHECK(cudaGraphLaunch(executable, exec.stream));
    const Losses::Bits replayed = losses.results();
    for (auto& [name, bytes] : eager[i])
      EXPECT_TRUE(bytes == replayed.at(name)) << name << ", " << ignored << " rows ignored";
  }
  XCE_CUDA_CHECK(cudaGraphExecDestroy(executable));
}
class CudaLossGraph : public ::testing::TestWithParam<Option> {
 protected:
  void SetUp() override {
    if (test::gpu_execs().empty()) GTEST_SKIP() << "needs a GPU";
  }
};
INSTANTIATE_TEST_SUITE_P(Options, CudaLossGraph, ::testing::ValuesIn(options()), ::testing::PrintToStringParamName());

TEST_P(CudaLossGraph, ReplayEqualsEagerAndFollowsItsInputs) {
  for (DType dtype : {DType::kF32, DType::kBf16, DType::kF16})
    for (size_t budget : {size_t{64} << 20, size_t{80} << 10})  // the vocabulary whole and in parts
      check_replay({dtype, 70, 32, 1000, budget, GetParam()});
  check_replay({DType::kF64, 70, 32, 1000, size_t{80} << 10, GetParam()});
  check_replay({DType::kF16, 700, 32, 1000, size_t{1600} << 10, GetParam()});  // chunks of rows
  check_replay({DType::kBf16, 70, 32, 40000, size_t{64} << 20, GetParam()});   // wide enough for a cluster of blocks
}

}  // namespace
}  // namespace xce

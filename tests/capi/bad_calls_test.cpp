// Every wrong call gives its status and a message with the argument and its value, writes nothing and leaves the
// context usable. The arguments are otherwise right, so that the first thing wrong is the one meant.
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>

#include "tests/capi/good_call.h"

namespace xce::test {
namespace {

class CApiBadCalls : public DeviceTest {
 protected:
  void SetUp() override {
    DeviceTest::SetUp();
    if (!IsSkipped()) context_ = std::make_unique<CContext>(on_gpu());
  }
  xce_context* context() { return *context_; }

  void expect_refused(const Good& good, xce_status got, xce_status want, const std::vector<std::string>& words) {
    EXPECT_EQ(got, want) << xce_last_error();
    const std::string message = xce_last_error();
    for (const std::string& word : words) EXPECT_NE(message.find(word), std::string::npos) << word << " in " << message;
    EXPECT_TRUE(good.untouched()) << message;
  }

 private:
  std::unique_ptr<CContext> context_;
};
INSTANTIATE_TEST_SUITE_P(Devices, CApiBadCalls, ::testing::ValuesIn(device_names()), device_name);

template <class Args>
struct Mistake {
  xce_status status;
  std::vector<std::string> words;
  std::function<void(Args&)> make;
};

constexpr xce_status kInvalid = XCE_ERROR_INVALID_ARGUMENT, kUnsupported = XCE_ERROR_UNSUPPORTED;

// What every struct with an xce_loss refuses.
template <class Args>
std::vector<Mistake<Args>> shared_mistakes() {
  static double value = 0;
  return {
      {kInvalid, {"struct_size", "got 0"}, [](Args& a) { a.struct_size = 0; }},
      {kInvalid, {"struct_size"}, [](Args& a) { --a.struct_size; }},
      {kInvalid, {"struct_size"}, [](Args& a) { a.struct_size += 8; }},
      {kInvalid, {"args.reserved", "5"}, [](Args& a) { a.reserved[3] = 5; }},
      {kInvalid, {"args.loss.reserved", "6"}, [](Args& a) { a.loss.reserved[7] = 6; }},
      {kInvalid, {"args.loss.rows", "-1"}, [](Args& a) { a.loss.rows = -1; }},
      {kInvalid, {"args.loss.vocab", "got 0"}, [](Args& a) { a.loss.vocab = 0; }},
      {kInvalid, {"args.loss.vocab", "-5"}, [](Args& a) { a.loss.vocab = -5; }},
      {kInvalid, {"args.loss.rows", "2^58"}, [](Args& a) { a.loss.rows = a.loss.vocab = int64_t{1} << 40; }},
      {kInvalid, {"args.loss.shard_offset", "-2"}, [](Args& a) { a.loss.shard_offset = -2; }},
      {kInvalid, {"args.loss.shard_offset"}, [](Args& a) { a.loss.shard_offset = INT64_MAX; }},
      {kInvalid, {"args.loss.vocab_global", "-1"}, [](Args& a) { a.loss.vocab_global = -1; }},
      {kInvalid, {"dtype", "got 0"}, [](Args& a) { a.loss.dtype = 0; }},
      {kInvalid, {"dtype", "got 5"}, [](Args& a) { a.loss.dtype = XCE_INT32; }},
      {kInvalid, {"args.loss.label_dtype", "got 0"}, [](Args& a) { a.loss.label_dtype = 0; }},
      {kInvalid, {"args.loss.label_dtype", "got 1"}, [](Args& a) { a.loss.label_dtype = XCE_FLOAT32; }},
      {kInvalid, {"args.loss.reduction", "got 3"}, [](Args& a) { a.loss.reduction = 3; }},
      {kInvalid, {"args.loss.z_loss", "nan"}, [](Args& a) { a.loss.z_loss = std::nan(""); }},
      {kInvalid, {"args.loss.z_loss", "-1"}, [](Args& a) { a.loss.z_loss = -1; }},
      {kInvalid, {"args.loss.has_ignore_index", "9"}, [](Args& a) { a.loss.ignore_index = 9; }},
      {kInvalid, {"args.loss.has_ignore_index", "2"}, [](Args& a) { a.loss.has_ignore_index = 2; }},
      {kInvalid, {"args.loss.upstream_is_scalar", "-1"}, [](Args& a) { a.loss.upstream_is_scalar = -1; }},
      {kInvalid, {"args.loss.denominator"}, [](Args& a) { a.loss.denominator = &value, a.loss.reduction = XCE_SUM; }},
      {kInvalid, {"args.loss.z_loss", "inf"}, [](Args& a) { a.loss.z_loss = HUGE_VAL; }},
      {kInvalid, {"args.loss.z_loss", "1e+31"}, [](Args& a) { a.loss.z_loss = 1e31; }},
      {kInvalid, {"args.loss.label_smoothing", "-0.1"}, [](Args& a) { a.loss.label_smoothing = -0.1; }},
      {kInvalid, {"args.loss.label_smoothing", "1.5"}, [](Args& a) { a.loss.label_smoothing = 1.5; }},
      {kInvalid, {"args.loss.label_smoothing", "nan"}, [](Args& a) { a.loss.label_smoothing = std::nan(""); }},
      {kInvalid, {"args.loss.softcap", "-30"}, [](Args& a) { a.loss.softcap = -30; }},
      {kInvalid, {"args.loss.softcap", "inf"}, [](Args& a) { a.loss.softcap = HUGE_VAL; }},
      {kInvalid, {"args.loss.softcap", "nan"}, [](Args& a) { a.loss.softcap = std::nan(""); }},
      {kInvalid, {"args.loss.softcap", "1e-31"}, [](Args& a) { a.loss.softcap = 1e-31; }},
      {kInvalid, {"args.loss.logit_scale", "inf"}, [](Args& a) { a.loss.logit_scale = HUGE_VAL; }},
      {kInvalid, {"args.loss.logit_scale", "nan"}, [](Args& a) { a.loss.logit_scale = std::nan(""); }},
      {kInvalid, {"args.loss.logit_scale", "-1e+31"}, [](Args& a) { a.loss.logit_scale = -1e31; }},
      {kInvalid, {"args.loss.empty_is_nan", "2"}, [](Args& a) { a.loss.empty_is_nan = 2; }},
      {kInvalid, {"args.loss.out_of_range_is_nan", "-1"}, [](Args& a) { a.loss.out_of_range_is_nan = -1; }},
      {kInvalid, {"args.loss.ld_probabilities", "24"}, [](Args& a) { a.loss.ld_probabilities = 24; }},
      {kInvalid, {"args.loss.probability_dtype", "1"}, [](Args& a) { a.loss.probability_dtype = XCE_FLOAT32; }},
      {kInvalid, {"args.loss.labels"}, [](Args& a) { a.loss.probabilities = &value; }},
      {kInvalid, {"args.loss.label_stride"}, [](Args& a) { a.loss.label_stride = INT64_MIN; }},
      {kInvalid, {"args.loss.upstream_stride"}, [](Args& a) { a.loss.upstream_stride = INT64_MAX / 2; }},
      {kInvalid,
       {"args.loss.has_ignore_index", "1"},
       [](Args& a) { a.loss.labels = nullptr, a.loss.probabilities = &value, a.loss.has_ignore_index = 1; }},
      {kInvalid,
       {"args.loss.n_correct", "probabilities"},
       [](Args& a) { a.loss.labels = nullptr, a.loss.probabilities = &value; }},
      {kInvalid,
       {"args.loss.probability_dtype", "5"},
       [](Args& a) { by_probabilities(a.loss, &value), a.loss.probability_dtype = XCE_INT32; }},
      {kInvalid,
       {"args.loss.ld_probabilities", "19"},
       [](Args& a) { by_probabilities(a.loss, &value), a.loss.ld_probabilities = kVocab - 1; }},
  };
}
// Of the calls that read labels and write results.
template <class Args>
std::vector<Mistake<Args>> array_mistakes() {
  auto off_by = [](auto* pointer, int bytes) {
    return reinterpret_cast<decltype(pointer)>(reinterpret_cast<uintptr_t>(pointer) + bytes);
  };
  return {
      {kInvalid, {"args.loss.labels", "null"}, [](Args& a) { a.loss.labels = nullptr; }},
      {kInvalid, {"args.loss.labels", "4 bytes"}, [=](Args& a) { a.loss.labels = off_by(a.loss.labels, 2); }},
      {kInvalid, {"args.loss.loss", "4 bytes"}, [=](Args& a) { a.loss.loss = off_by(a.loss.loss, 1); }},
      {kInvalid, {"args.loss.row_loss"}, [=](Args& a) { a.loss.row_loss = off_by(a.loss.row_loss, 1); }},
      {kInvalid, {"args.loss.n_valid", "8 bytes"}, [=](Args& a) { a.loss.n_valid = off_by(a.loss.n_valid, 4); }},
      {kInvalid, {"args.loss.argmax", "8 bytes"}, [=](Args& a) { a.loss.argmax = off_by(a.loss.argmax, 4); }},
      {kInvalid, {"args.loss.row_max"}, [=](Args& a) { a.loss.row_max = off_by(a.loss.row_max, 2); }},
      {kInvalid, {"args.loss.row_entropy"}, [=](Args& a) { a.loss.row_entropy = off_by(a.loss.row_entropy, 2); }},
      {kInvalid, {"args.loss.n_correct"}, [=](Args& a) { a.loss.n_correct = off_by(a.loss.n_correct, 1); }},
      {kInvalid, {"args.loss.weight_sum"}, [=](Args& a) { a.loss.weight_sum = off_by(a.loss.weight_sum, 4); }},
      {kInvalid,
       {"args.loss.first_out_of_range"},
       [=](Args& a) { a.loss.first_out_of_range = off_by(a.loss.first_out_of_range, 4); }},
      {kInvalid, {"args.loss.class_weights"}, [=](Args& a) { a.loss.class_weights = off_by(a.loss.labels, 2); }},
      {kInvalid, {"args.loss.token_weights"}, [=](Args& a) { a.loss.token_weights = off_by(a.loss.labels, 2); }},
      {kInvalid,
       {"args.loss.probabilities", "8 bytes"},
       [=](Args& a) {
         by_probabilities(a.loss, off_by(a.loss.labels, 4));
         a.loss.probability_dtype = XCE_FLOAT64;
       }},
  };
}
// Of a loss on a GPU.
template <class Args>
std::vector<Mistake<Args>> size_mistakes() {
  return {{kUnsupported, {"args.loss.rows", "2^30"}, [](Args& a) { a.loss.rows = int64_t{1} << 30; }},
          {kUnsupported, {"args.loss.vocab", "2^30"}, [](Args& a) { a.loss.vocab = int64_t{1} << 30; }}};
}
template <class Args>
void append(std::vector<Mistake<Args>>& to, std::vector<Mistake<Args>> more) {
  to.insert(to.end(), more.begin(), more.end());
}

TEST_P(CApiBadCalls, LinearCrossEntropy) {
  using Args = xce_linear_cross_entropy_args;
  auto mistakes = shared_mistakes<Args>();
  append(mistakes, array_mistakes<Args>());
  append<Args>(
      mistakes,
      {{kInvalid, {"args.hidden", "got 0"}, [](Args& a) { a.hidden = 0; }},
       {kUnsupported, {"args.hidden", "2^31"}, [](Args& a) { a.hidden = int64_t{1} << 31; }},
       {kInvalid, {"args.ldx", "7"}, [](Args& a) { a.ldx = 7; }},
       {kInvalid, {"args.ldw", "-8"}, [](Args& a) { a.ldw = -8; }},
       {kUnsupported, {"args.ldw", "2^31"}, [](Args& a) { a.ldw = int64_t{1} << 31; }},
       {kInvalid, {"args.ld_dx", "7"}, [](Args& a) { a.ld_dx = 7; }},
       {kInvalid, {"args.ld_dweight", "-9"}, [](Args& a) { a.ld_dweight = -9; }},
       {kInvalid, {"args.ld_dweight"}, [](Args& a) { a.ld_dweight = INT64_MAX; }},
       {kInvalid, {"args.dx_dtype", "3"}, [](Args& a) { a.dx_dtype = XCE_FLOAT64; }},
       {kInvalid, {"args.dweight_dtype", "2"}, [](Args& a) { a.dweight_dtype = XCE_BFLOAT16; }},
       {kInvalid, {"args.dx_dtype", "99"}, [](Args& a) { a.dx_dtype = 99; }},
       {kInvalid, {"args.accumulate_dx", "2"}, [](Args& a) { a.accumulate_dx = 2; }},
       {kInvalid, {"args.accumulate_dweight", "3"}, [](Args& a) { a.accumulate_dweight = 3; }},
       {kInvalid,
        {"args.accumulate_dweight", "1"},
        [](Args& a) { a.loss.dtype = a.dweight_dtype = XCE_FLOAT16, a.accumulate_dweight = 1; }},
       {kInvalid, {"args.allow_tf32", "2"}, [](Args& a) { a.allow_tf32 = 2; }},
       {kInvalid, {"args.reserved_flag", "1"}, [](Args& a) { a.reserved_flag = 1; }},
       {kInvalid, {"args.dbias", "bias"}, [](Args& a) { a.bias = nullptr; }},
       {kInvalid, {"args.plan_vocab", "19"}, [](Args& a) { a.plan_vocab = kVocab - 1; }},
       {kInvalid, {"args.plan_vocab"}, [](Args& a) { a.plan_vocab = INT64_MAX; }},
       {kInvalid, {"args.x", "null"}, [](Args& a) { a.x = nullptr; }},
       {kInvalid, {"args.weight", "null"}, [](Args& a) { a.weight = nullptr; }},
       {kInvalid, {"args.x", "4 bytes"}, [](Args& a) { a.x = static_cast<const char*>(a.x) + 2; }},
       {kInvalid, {"args.bias", "4 bytes"}, [](Args& a) { a.bias = static_cast<const char*>(a.x) + 1; }},
       {kInvalid, {"args.dweight", "4 bytes"}, [](Args& a) { a.dweight = static_cast<char*>(a.dweight) + 2; }},
       {kInvalid, {"args.loss.shard_offset", "4"}, [](Args& a) { a.loss.shard_offset = 4; }},
       {kInvalid, {"args.loss.vocab_global", "21"}, [](Args& a) { a.loss.vocab_global = kVocab + 1; }},
       {XCE_ERROR_WORKSPACE, {"args.workspace", "null"}, [](Args& a) { a.workspace = nullptr; }},
       {XCE_ERROR_WORKSPACE,
        {"args.workspace", "16 bytes"},
        [](Args& a) { a.workspace = static_cast<char*>(a.workspace) + 8; }},
       {XCE_ERROR_WORKSPACE, {"args.workspace_size_bytes", "100"}, [](Args& a) { a.workspace_size_bytes = 100; }},
       {XCE_ERROR_WORKSPACE, {"args.workspace_budget_bytes", "at least", "got 10"}, [](Args& a) {
          a.workspace_budget_bytes = 10;
        }}});
  if (on_gpu()) append(mistakes, size_mistakes<Args>());
  for (const auto& mistake : mistakes) {
    Good good;
    auto args = good.linear();
    mistake.make(args);
    expect_refused(good, xce_linear_cross_entropy_forward_backward(context(), &args), mistake.status, mistake.words);
    expect_refused(good, xce_linear_cross_entropy_prepare(context(), XCE_FORWARD_BACKWARD, &args), mistake.status,
                   mistake.words);
    expect_refused(good, xce_linear_cross_entropy_forward(context(), &args), mistake.status, mistake.words);
  }
  Good good;
  auto args = good.linear();
  EXPECT_TRUE(ok(xce_linear_cross_entropy_forward_backward(context(), &args)));
  EXPECT_FALSE(good.untouched());
}

TEST_P(CApiBadCalls, LinearCrossEntropyByPass) {
  Good good;
  auto args = good.linear();
  size_t bytes = 77;
  int64_t count = 77, rows = 77;
  auto refused = [&](xce_status got, xce_status want, const std::vector<std::string>& words) {
    expect_refused(good, got, want, words);
  };
  refused(xce_linear_cross_entropy_forward(nullptr, &args), kInvalid, {"context", "null"});
  refused(xce_linear_cross_entropy_forward(context(), nullptr), kInvalid, {"args", "null"});
  refused(xce_linear_cross_entropy_workspace_bytes(context(), XCE_FORWARD, &args, nullptr), kInvalid, {"bytes"});
  refused(xce_linear_cross_entropy_workspace_bytes(context(), 9, &args, &bytes), kInvalid, {"pass", "9"});
  refused(xce_linear_cross_entropy_prepare(context(), 0, &args), kInvalid, {"pass", "0"});
  refused(xce_linear_cross_entropy_prepare(context(), XCE_BEGIN_FINISH, &args), kInvalid, {"args.statistics", "null"});
  refused(xce_linear_cross_entropy_chunks(context(), &args, nullptr, &rows), kInvalid, {"count"});
  refused(xce_linear_cross_entropy_chunks(context(), &args, &count, nullptr), kInvalid, {"rows_per_chunk"});
  refused(xce_linear_cross_entropy_begin(context(), &args, -1, good.statistics.data()), kInvalid, {"chunk", "-1"});
  refused(xce_linear_cross_entropy_begin(context(), &args, 0, nullptr), kInvalid, {"statistics", "null"});
  refused(xce_linear_cross_entropy_finish(context(), &args, 1, good.statistics.data()), kInvalid, {"chunk", "1"});
  auto no_residual = args;
  no_residual.loss.logsum = nullptr;
  refused(xce_linear_cross_entropy_backward(context(), &no_residual), kInvalid, {"args.loss.logsum", "null"});
  auto shard = args;
  by_probabilities(shard.loss, good.probabilities.data());
  shard.loss.vocab_global = 2 * kVocab;
  refused(xce_linear_cross_entropy_backward(context(), &shard), kInvalid, {"args.statistics", "merged", "null"});
  auto odd = args;
  odd.statistics = reinterpret_cast<char*>(good.statistics.data()) + 4;
  refused(xce_linear_cross_entropy_forward(context(), &odd), kInvalid, {"args.statistics", "8 bytes"});
  EXPECT_EQ(bytes, 77u);
  EXPECT_EQ(count, 77);
  EXPECT_EQ(rows, 77);
}

TEST_P(CApiBadCalls, CrossEntropy) {
  using Args = xce_cross_entropy_args;
  auto mistakes = shared_mistakes<Args>();
  append(mistakes, array_mistakes<Args>());
  append<Args>(
      mistakes,
      {{kInvalid, {"args.ld", "19"}, [](Args& a) { a.ld = kVocab - 1; }},
       {kInvalid, {"args.ld_dlogits", "-3"}, [](Args& a) { a.ld_dlogits = -3; }},
       {kInvalid, {"args.logits", "null"}, [](Args& a) { a.logits = nullptr; }},
       {kInvalid, {"args.logits", "4 bytes"}, [](Args& a) { a.logits = static_cast<const char*>(a.logits) + 2; }},
       {kInvalid, {"args.dlogits", "null"}, [](Args& a) { a.dlogits = nullptr; }},
       {kInvalid, {"args.ld_dlogits", "21"}, [](Args& a) { a.logits = a.dlogits, a.ld_dlogits = kVocab + 1; }},
       {kInvalid, {"args.loss.shard_offset", "4"}, [](Args& a) { a.loss.shard_offset = 4; }}});
  if (on_gpu()) append(mistakes, size_mistakes<Args>());
  for (const auto& mistake : mistakes) {
    Good good;
    auto args = good.plain();
    mistake.make(args);
    expect_refused(good, xce_cross_entropy_forward_backward(context(), &args), mistake.status, mistake.words);
    expect_refused(good, xce_cross_entropy_prepare(context(), XCE_FORWARD_BACKWARD, &args), mistake.status,
                   mistake.words);
  }
  Good good;
  auto args = good.plain();
  by_probabilities(args.loss, good.probabilities.data());
  args.loss.shard_offset = kVocab;
  expect_refused(good, xce_cross_entropy_backward(context(), &args), kInvalid, {"args.statistics", "null"});
  args = good.plain();
  args.loss.offset = nullptr;
  expect_refused(good, xce_cross_entropy_backward(context(), &args), kInvalid, {"args.loss.offset", "null"});
  size_t bytes = 77;
  expect_refused(good, xce_cross_entropy_workspace_bytes(context(), XCE_BEGIN_FINISH, &args, &bytes), kInvalid,
                 {"pass", "4"});
  args = good.plain();
  if (on_gpu()) {
    args.workspace_size_bytes = 1;
    expect_refused(good, xce_cross_entropy_forward(context(), &args), XCE_ERROR_WORKSPACE, {"workspace_size_bytes"});
  }
  args = good.plain();
  EXPECT_TRUE(ok(xce_cross_entropy_forward_backward(context(), &args)));
}

TEST_P(CApiBadCalls, CountAndStatistics) {
  auto count_mistakes = shared_mistakes<xce_loss_count_args>();
  append(count_mistakes, array_mistakes<xce_loss_count_args>());
  append<xce_loss_count_args>(count_mistakes,
                              {{kInvalid, {"args.accumulate", "2"}, [](xce_loss_count_args& a) { a.accumulate = 2; }}});
  for (const auto& mistake : count_mistakes) {
    Good good;
    auto args = good.count();
    mistake.make(args);
    expect_refused(good, xce_loss_count(context(), &args), mistake.status, mistake.words);
  }
  using Sets = xce_loss_statistics_args;
  auto mistakes = shared_mistakes<Sets>();
  append<Sets>(mistakes, {{kInvalid, {"args.rows", "-1"}, [](Sets& a) { a.rows = -1; }},
                          {kInvalid, {"args.rows"}, [](Sets& a) { a.rows = INT64_MAX; }},
                          {kInvalid, {"args.count", "got 0"}, [](Sets& a) { a.count = 0; }},
                          {kInvalid, {"args.count"}, [](Sets& a) { a.count = INT64_MAX; }},
                          {kInvalid, {"args.sets", "null"}, [](Sets& a) { a.sets = nullptr; }},
                          {kInvalid, {"args.statistics", "null"}, [](Sets& a) { a.statistics = nullptr; }}});
  for (const auto& mistake : mistakes) {
    Good good;
    auto args = good.sets();
    mistake.make(args);
    expect_refused(good, xce_loss_merge_statistics(context(), &args), mistake.status, mistake.words);
  }
  for (const auto& mistake : array_mistakes<Sets>()) {
    Good good;
    auto args = good.sets();
    mistake.make(args);
    expect_refused(good, xce_loss_from_statistics(context(), &args), mistake.status, mistake.words);
  }
  Good good;
  expect_refused(good, xce_loss_prepare(context(), 0), kInvalid, {"dtype", "got 0"});
}

TEST(CApiContext, BadCalls) {
  xce_context* context = reinterpret_cast<xce_context*>(1);
  EXPECT_EQ(xce_context_create_cpu(-1, &context), kInvalid);
  EXPECT_EQ(context, nullptr);
  EXPECT_NE(std::strstr(xce_last_error(), "threads"), nullptr);
  EXPECT_NE(std::strstr(xce_last_error(), "xce_context_create_cpu"), nullptr);
  EXPECT_EQ(xce_context_create_cpu(513, &context), kInvalid);
  EXPECT_EQ(xce_context_create_cpu(1, nullptr), kInvalid);
  EXPECT_NE(xce_context_create_cuda(9999, &context), XCE_OK);
  EXPECT_EQ(context, nullptr);
  EXPECT_NE(xce_context_create_cuda(-1, &context), XCE_OK);
  EXPECT_EQ(xce_context_set_stream(nullptr, nullptr), kInvalid);
  CContext cpu(false, 1);
  EXPECT_EQ(xce_context_set_stream(cpu, &context), kInvalid);
  EXPECT_EQ(xce_context_set_stream(cpu, nullptr), XCE_OK);
  EXPECT_EQ(xce_context_set_tuning(nullptr, 1), kInvalid);
  EXPECT_EQ(xce_context_set_tuning(cpu, 2), kInvalid);
  EXPECT_EQ(xce_context_set_tuning(cpu, 0), XCE_OK);
  size_t bytes = 0;
  char text[4] = "abc";
  EXPECT_EQ(xce_context_tuning_text(cpu, text, 4, nullptr), kInvalid);
  EXPECT_EQ(xce_context_tuning_text(cpu, text, 0, &bytes), kInvalid);
  EXPECT_EQ(xce_context_tuning_text(cpu, text, 4, &bytes), XCE_OK);
  EXPECT_EQ(bytes, 1u);
  EXPECT_EQ(xce_context_load_tuning_text(cpu, nullptr), kInvalid);
  EXPECT_EQ(xce_context_load_tuning_text(cpu, "abc"), kUnsupported);
  xce_context_destroy(nullptr);
  EXPECT_GE(xce_cuda_device_count(), 0);
  for (int status = -1; status < 12; ++status) EXPECT_NE(xce_status_string(status), nullptr);
}

}  // namespace
}  // namespace xce::test

// Every wrong call gives its status and a message with the argument and its value, writes nothing and leaves the
// context usable. The arguments are otherwise right, so that the first thing wrong is the one meant.
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>

#include "tests/capi/c_args.h"
#include "tests/support/array.h"

namespace xce::test {
namespace {

constexpr int64_t kRows = 6, kHidden = 8, kVocab = 20;
constexpr size_t kBudget = size_t{1} << 20;

// A call that works; every result holds NaN or -7 until it runs.
struct Good {
  Array x = Array::normal(DType::kF32, kRows*kHidden, 1), weight = Array::normal(DType::kF32, kVocab*kHidden, 2);
  Array logits = Array::normal(DType::kF32, kRows* kVocab, 3);
  Array dx{DType::kF32, kRows*kHidden}, dweight{DType::kF32, kVocab*kHidden}, dbias{DType::kF32, kVocab};
  Array dlogits{DType::kF32, kRows*kVocab}, loss{DType::kF32, 1}, row_loss{DType::kF32, kRows};
  Array offset{DType::kF32, kRows}, logsum{DType::kF32, kRows}, statistics{DType::kF32, 3 * kRows};
  Scalar<int64_t> n_valid{-7}, out_of_range{-7};
  Scalar<double> weight_sum{-7}, loss_total{-7};
  Vector<int32_t> labels = Vector<int32_t>(kRows, 3);
  Vector<std::max_align_t> workspace = Vector<std::max_align_t>(kBudget / sizeof(std::max_align_t));

  xce_loss shared() {
    xce_loss to{};
    to.rows = kRows, to.vocab = kVocab, to.dtype = XCE_FLOAT32, to.label_dtype = XCE_INT32;
    to.labels = labels.data();
    to.loss = loss.data(), to.loss_total = loss_total.data(), to.row_loss = row_loss.data();
    to.offset = offset.data(), to.logsum = logsum.data();
    to.n_valid = n_valid.data(), to.out_of_range = out_of_range.data();
    return to;
  }
  xce_linear_cross_entropy_args linear() {
    xce_linear_cross_entropy_args args{};
    args.struct_size = sizeof(args);
    args.loss = shared();
    args.hidden = kHidden;
    args.x = x.data(), args.weight = weight.data();
    args.dx = dx.data(), args.dweight = dweight.data(), args.dbias = dbias.data();
    args.workspace = workspace.data(), args.workspace_size_bytes = kBudget, args.workspace_budget_bytes = kBudget;
    return args;
  }
  xce_cross_entropy_args plain() {
    xce_cross_entropy_args args{};
    args.struct_size = sizeof(args);
    args.loss = shared();
    args.logits = logits.data(), args.dlogits = dlogits.data();
    args.workspace = workspace.data(), args.workspace_size_bytes = kBudget;
    return args;
  }
  xce_loss_count_args count() {
    xce_loss_count_args args{};
    args.struct_size = sizeof(args);
    args.loss = shared();
    args.loss.weight_sum = weight_sum.data();
    return args;
  }
  xce_loss_statistics_args sets() {
    xce_loss_statistics_args args{};
    args.struct_size = sizeof(args);
    args.loss = shared();
    args.sets = x.data(), args.count = 2, args.rows = kRows, args.statistics = statistics.data();
    return args;
  }
  bool untouched() const {
    for (const Array* a : {&dx, &dweight, &dbias, &dlogits, &loss, &row_loss, &offset, &logsum, &statistics}) {
      if (!a->guards_intact()) return false;
      for (int64_t i = 0; i < a->size(); ++i)
        if (!std::isnan((*a)[i])) return false;
    }
    return n_valid == -7 && out_of_range == -7 && weight_sum == -7.0 && loss_total == -7.0;
  }
};

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
  static int64_t integer = 0;
  return {
      {kInvalid, {"struct_size", "got 0"}, [](Args& a) { a.struct_size = 0; }},
      {kInvalid, {"struct_size"}, [](Args& a) { --a.struct_size; }},
      {kInvalid, {"struct_size"}, [](Args& a) { a.struct_size += 8; }},
      {kInvalid, {"args.reserved", "5"}, [](Args& a) { a.reserved[3] = 5; }},
      {kInvalid, {"args.loss.reserved", "6"}, [](Args& a) { a.loss.reserved[7] = 6; }},
      {kInvalid, {"args.loss.reserved_flag", "1"}, [](Args& a) { a.loss.reserved_flag = 1; }},
      {kInvalid, {"args.loss.rows", "-1"}, [](Args& a) { a.loss.rows = -1; }},
      {kInvalid, {"args.loss.vocab", "got 0"}, [](Args& a) { a.loss.vocab = 0; }},
      {kInvalid, {"args.loss.vocab", "-5"}, [](Args& a) { a.loss.vocab = -5; }},
      {kInvalid, {"args.loss.rows", "2^58"}, [](Args& a) { a.loss.rows = a.loss.vocab = int64_t{1} << 40; }},
      {kInvalid, {"args.loss.shard_offset", "-2"}, [](Args& a) { a.loss.shard_offset = -2; }},
      {kInvalid, {"args.loss.shard_offset"}, [](Args& a) { a.loss.shard_offset = INT64_MAX; }},
      {kInvalid, {"args.loss.vocab_global", "-1"}, [](Args& a) { a.loss.vocab_global = -1; }},
      {kInvalid, {"dtype", "got 0"}, [](Args& a) { a.loss.dtype = 0; }},
      {kInvalid, {"dtype", "got 5"}, [](Args& a) { a.loss.dtype = XCE_INT32; }},
      {kUnsupported, {"XCE_FLOAT16"}, [](Args& a) { a.loss.dtype = XCE_FLOAT16; }},
      {kInvalid, {"args.loss.label_dtype", "got 0"}, [](Args& a) { a.loss.label_dtype = 0; }},
      {kInvalid, {"args.loss.label_dtype", "got 1"}, [](Args& a) { a.loss.label_dtype = XCE_FLOAT32; }},
      {kInvalid, {"args.loss.reduction", "got 3"}, [](Args& a) { a.loss.reduction = 3; }},
      {kInvalid, {"args.loss.z_loss", "nan"}, [](Args& a) { a.loss.z_loss = std::nan(""); }},
      {kInvalid, {"args.loss.z_loss", "-1"}, [](Args& a) { a.loss.z_loss = -1; }},
      {kInvalid, {"args.loss.has_ignore_index", "9"}, [](Args& a) { a.loss.ignore_index = 9; }},
      {kInvalid, {"args.loss.has_ignore_index", "2"}, [](Args& a) { a.loss.has_ignore_index = 2; }},
      {kInvalid, {"args.loss.upstream_is_scalar", "-1"}, [](Args& a) { a.loss.upstream_is_scalar = -1; }},
      {kInvalid, {"args.loss.denominator"}, [](Args& a) { a.loss.denominator = &value, a.loss.reduction = XCE_SUM; }},
      {kUnsupported, {"args.loss.label_smoothing", "0.1"}, [](Args& a) { a.loss.label_smoothing = 0.1; }},
      {kUnsupported, {"args.loss.label_smoothing", "nan"}, [](Args& a) { a.loss.label_smoothing = std::nan(""); }},
      {kUnsupported, {"args.loss.softcap", "30"}, [](Args& a) { a.loss.softcap = 30; }},
      {kUnsupported, {"args.loss.logit_scale", "2"}, [](Args& a) { a.loss.logit_scale = 2; }},
      {kUnsupported, {"args.loss.class_weights"}, [](Args& a) { a.loss.class_weights = &value; }},
      {kUnsupported, {"args.loss.token_weights"}, [](Args& a) { a.loss.token_weights = &value; }},
      {kUnsupported, {"args.loss.probabilities"}, [](Args& a) { a.loss.probabilities = &value; }},
      {kUnsupported, {"args.loss.ld_probabilities", "4"}, [](Args& a) { a.loss.ld_probabilities = 4; }},
      {kUnsupported, {"args.loss.empty_is_nan", "1"}, [](Args& a) { a.loss.empty_is_nan = 1; }},
      {kUnsupported, {"args.loss.out_of_range_is_nan", "1"}, [](Args& a) { a.loss.out_of_range_is_nan = 1; }},
      {kUnsupported, {"args.loss.first_out_of_range"}, [](Args& a) { a.loss.first_out_of_range = &integer; }},
      {kUnsupported, {"args.loss.row_max"}, [](Args& a) { a.loss.row_max = &value; }},
      {kUnsupported, {"args.loss.row_entropy"}, [](Args& a) { a.loss.row_entropy = &value; }},
      {kUnsupported, {"args.loss.argmax"}, [](Args& a) { a.loss.argmax = &integer; }},
      {kUnsupported, {"args.loss.n_correct"}, [](Args& a) { a.loss.n_correct = &integer; }},
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
  };
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
       {kUnsupported, {"args.ld_dx", "9"}, [](Args& a) { a.ld_dx = 9; }},
       {kUnsupported, {"args.ld_dweight", "9"}, [](Args& a) { a.ld_dweight = 9; }},
       {kUnsupported, {"args.dx_dtype", "3"}, [](Args& a) { a.dx_dtype = XCE_FLOAT64; }},
       {kUnsupported, {"args.dweight_dtype", "2"}, [](Args& a) { a.dweight_dtype = XCE_BFLOAT16; }},
       {kInvalid, {"dtype", "99"}, [](Args& a) { a.dx_dtype = 99; }},
       {kInvalid, {"args.accumulate_dx", "2"}, [](Args& a) { a.accumulate_dx = 2; }},
       {kInvalid, {"args.accumulate_dweight", "3"}, [](Args& a) { a.accumulate_dweight = 3; }},
       {kUnsupported, {"args.allow_tf32", "1"}, [](Args& a) { a.allow_tf32 = 1; }},
       {kInvalid, {"args.reserved_flag", "1"}, [](Args& a) { a.reserved_flag = 1; }},
       {kUnsupported, {"args.loss.weight_sum"}, [](Args& a) { a.loss.weight_sum = a.loss.loss_total; }},
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

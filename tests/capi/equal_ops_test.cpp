// Every entry point of the C API gives bit for bit what the op behind it gives.
#include <bit>

#include "tests/capi/c_calls.h"

namespace xce::test {
namespace {

class CApi : public DeviceTest {};
INSTANTIATE_TEST_SUITE_P(Devices, CApi, ::testing::ValuesIn(device_names()), device_name);

// One op with as much workspace as it asks for.
template <class Args>
void run_op(const Exec& exec, Args args) {
  Scratch scratch(workspace_bytes(exec, args) / sizeof(std::max_align_t) + 1);
  args.workspace = scratch.data(), args.workspace_size_bytes = scratch.size() * sizeof(std::max_align_t);
  run(exec, args);
}

void expect_same(const LossRun& got, const LossRun& want) {
  EXPECT_TRUE(got.loss.same_bits(want.loss));
  EXPECT_TRUE(got.z_loss.same_bits(want.z_loss));
  EXPECT_TRUE(got.row_loss.same_bits(want.row_loss));
  EXPECT_TRUE(got.offset.same_bits(want.offset));
  EXPECT_TRUE(got.logsum.same_bits(want.logsum));
  EXPECT_TRUE(got.row_max.same_bits(want.row_max));
  EXPECT_TRUE(got.row_entropy.same_bits(want.row_entropy));
  for (int64_t i = 0; i < got.row_max.size(); ++i) EXPECT_EQ(got.argmax(i), want.argmax(i)) << "row " << i;
  EXPECT_TRUE(got.dx.same_bits(want.dx));
  EXPECT_TRUE(got.dweight.same_bits(want.dweight));
  EXPECT_TRUE(got.dbias.same_bits(want.dbias));
  EXPECT_EQ(std::bit_cast<uint64_t>(double(got.loss_total)), std::bit_cast<uint64_t>(double(want.loss_total)));
  EXPECT_EQ(int64_t(got.n_valid), int64_t(want.n_valid));
  EXPECT_EQ(int64_t(got.out_of_range), int64_t(want.out_of_range));
  EXPECT_EQ(int64_t(got.first_out_of_range), int64_t(want.first_out_of_range));
  EXPECT_EQ(int64_t(got.n_correct), int64_t(want.n_correct));
  EXPECT_EQ(double(got.weight_sum), double(want.weight_sum));
}

// A setup, and which of the options its case has.
struct Variant {
  LossSetup setup;
  bool weights = false, smoothing = false, softcap = false, probabilities = false;
};

std::vector<Variant> variants(size_t budget) {
  std::vector<Variant> all;
  for (DType dtype : {DType::kF32, DType::kBf16, DType::kF16, DType::kF64})
    for (Reduction reduction : {Reduction::kMean, Reduction::kSum, Reduction::kNone})
      all.push_back({{.dtype = dtype, .reduction = reduction, .budget_bytes = budget}});
  auto add = [&](Variant variant) {
    variant.setup.budget_bytes = budget;
    all.push_back(variant);
  };
  add({{.index = IndexType::kI32, .index_stride = 3, .pad_x = 3, .pad_weight = 1, .pad_dx = 2, .pad_dweight = 5}});
  add({{.accumulate = true, .by_pointer = true}});
  add({{.dtype = DType::kBf16, .with_dbias = false, .dx_in_accum_dtype = true}});
  add({{.reduction = Reduction::kNone, .upstream_stride = 2, .with_dx = false}});
  add({{.empty_is_nan = true, .out_of_range_is_nan = true}});
  add({.setup = {}, .weights = true});
  add({.setup = {}, .smoothing = true});
  add({.setup = {.dtype = DType::kF64}, .softcap = true});
  for (DType dtype : {DType::kF32, DType::kBf16, DType::kF16, DType::kF64}) {
    add({.setup = {.dtype = dtype}, .weights = true, .smoothing = true, .softcap = true});
    add({.setup = {.pad_probabilities = 3, .probability_type = dtype},
         .weights = true,
         .softcap = true,
         .probabilities = true});
    add({.setup = {.dtype = dtype, .probability_type = dtype}, .smoothing = true, .probabilities = true});
  }
  return all;
}

LossCase case_for(const Variant& v) {
  const LossSetup& s = v.setup;
  LossCase c = random_case(s.dtype, 37, 16, 300, 5);
  c.labels[3] = 300, c.labels[4] = -1;  // out of range
  c.z_loss = 0.01;
  c.divisor = 12.5;
  if (s.reduction == Reduction::kNone)
    for (int64_t i = 0; i < c.rows; ++i) c.upstream.push_back(0.25 * static_cast<double>(i % 5) - 0.5);
  else
    c.upstream = {-2};
  if (v.weights) {
    for (int64_t label = 0; label < c.vocab; ++label) c.class_weights.push_back(0.125 * static_cast<double>(label % 9));
    for (int64_t i = 0; i < c.rows; ++i) c.token_weights.push_back(0.5 * static_cast<double>(i % 4));
  }
  if (v.smoothing) c.label_smoothing = 0.125;
  if (v.softcap) c.softcap = 4, c.logit_scale = 0.75;
  if (v.probabilities) {
    c.labels.clear();
    for (int64_t i = 0; i < c.rows * c.vocab; ++i) c.probabilities.push_back(static_cast<double>(i * i % 8) / 1024);
  }
  return c;
}

std::string text_of(const Variant& v, size_t budget) {
  return str(name_of(v.setup.dtype), " reduction ", static_cast<int>(v.setup.reduction), " budget ", budget,
             " weights ", v.weights, " smoothing ", v.smoothing, " softcap ", v.softcap, " probabilities ",
             v.probabilities);
}

TEST_P(CApi, LinearCrossEntropyEqualsTheOp) {
  CContext context(on_gpu());
  for (size_t budget : {size_t{8} << 20, size_t{128} << 10}) {
    for (const Variant& v : variants(budget)) {
      SCOPED_TRACE(text_of(v, budget));
      const LossCase c = case_for(v);
      const LossSetup& s = v.setup;
      LossRun want(c, s), got(c, s);
      want.forward_backward(exec());
      run_pass(context, XCE_FORWARD_BACKWARD, c_args(call_of(got, budget)));
      expect_same(got, want);
      if (!s.out_of_range_is_nan) {
        ASSERT_NE(double(want.loss[0]), 0);
        ASSERT_TRUE(std::isfinite(want.loss[0]));
      }

      LossRun want_apart(c, s), got_apart(c, s);
      want_apart.forward(exec());
      want_apart.backward(exec());
      run_pass(context, XCE_FORWARD, c_args(call_of(got_apart, budget)));
      run_pass(context, XCE_BACKWARD, c_args(call_of(got_apart, budget)));
      expect_same(got_apart, want_apart);
    }
  }
}

// Gradients of the weights in the operands' dtype, which cannot be accumulated: one chunk of all rows.
TEST_P(CApi, NarrowWeightGradients) {
  CContext context(on_gpu());
  for (DType dtype : {DType::kBf16, DType::kF16}) {
    const Variant v{{.dtype = dtype, .budget_bytes = size_t{8} << 20, .dweight_in_dtype = true}};
    const LossCase c = case_for(v);
    LossRun want(c, v.setup), got(c, v.setup);
    want.forward_backward(exec());
    const xce_linear_cross_entropy_args args = c_args(call_of(got, v.setup.budget_bytes));
    EXPECT_EQ(args.dweight_dtype, c_dtype(dtype));
    run_pass(context, XCE_FORWARD_BACKWARD, args);
    expect_same(got, want);
  }
}

// A permission of fp32 products on a GPU: no effect on a CPU, nor on other dtypes.
TEST_P(CApi, Tf32WhereItIsAllowed) {
  CContext context(on_gpu());
  for (DType dtype : {DType::kF32, DType::kBf16, DType::kF64}) {
    SCOPED_TRACE(name_of(dtype));
    const Variant v{{.dtype = dtype}};
    const LossCase c = case_for(v);
    LossRun want(c, v.setup), got(c, v.setup);
    want.forward_backward(exec());
    LinearCrossEntropyForwardBackward call = call_of(got, size_t{8} << 20);
    call.in.allow_tf32 = true;
    run_pass(context, XCE_FORWARD_BACKWARD, c_args(call));
    if (on_gpu() && dtype == DType::kF32) {
      EXPECT_NEAR(got.loss[0], want.loss[0], 1e-3 * std::fabs(want.loss[0]));
    } else {
      expect_same(got, want);
    }
  }
}

TEST_P(CApi, AnIgnoreIndexInTheVocabulary) {
  LossCase c = random_case(DType::kF32, 20, 8, 50, 7);
  c.ignore_index = 0;
  for (int64_t i = 0; i < c.rows; i += 2) c.labels[i] = 0;
  LossRun want(c, {}), got(c, {});
  want.forward_backward(exec());
  CContext context(on_gpu());
  xce_linear_cross_entropy_args args = c_args(call_of(got, size_t{1} << 20));
  EXPECT_EQ(args.loss.has_ignore_index, 1);
  run_pass(context, XCE_FORWARD_BACKWARD, args);
  expect_same(got, want);
  EXPECT_EQ(want.n_valid, reference_linear_cross_entropy(c).n_valid);
}

// upstream_is_scalar: row gradients from one value, as of a tensor expanded from it.
TEST_P(CApi, OneUpstreamForAllRows) {
  const LossSetup s{.reduction = Reduction::kNone};
  LossCase c = random_case(DType::kF32, 20, 8, 50, 8);
  c.upstream = {-3};
  LossRun got(c, s);
  CContext context(on_gpu());
  xce_linear_cross_entropy_args args = c_args(call_of(got, size_t{1} << 20));
  EXPECT_EQ(args.loss.upstream_is_scalar, 1);
  run_pass(context, XCE_FORWARD_BACKWARD, args);
  c.own_mean = false, c.divisor = 1;
  expect_gradients(got, reference_linear_cross_entropy(c));
}

// The arrays of LossRun but for the gradients, which plain cross-entropy has over given logits.
TEST_P(CApi, CrossEntropyEqualsTheOp) {
  CContext context(on_gpu());
  for (const Variant& v : variants(0)) {
    if (v.setup.accumulate || v.setup.dx_in_accum_dtype) continue;
    SCOPED_TRACE(text_of(v, 0));
    const LossCase c = case_for(v);
    const DType dtype = v.setup.dtype;
    const int64_t ld = c.vocab + 7;
    const Array logits = Array::normal(dtype, c.rows * ld, 11, 2);
    auto op = [&](LossRun& run, Array& dlogits, bool in_place) {
      return CrossEntropyForwardBackward{.in = {.logits = in_place ? dlogits.data() : logits.data(),
                                                .targets = run.targets(),
                                                .rows = c.rows,
                                                .vocab = c.vocab,
                                                .dtype = dtype,
                                                .ld = ld},
                                         .options = run.options(),
                                         .out = run.outputs(),
                                         .upstream = run.upstream(),
                                         .dlogits = dlogits.data(),
                                         .ld_dlogits = ld};
    };
    for (bool in_place : {false, true}) {
      LossRun want(c, v.setup), got(c, v.setup), want_apart(c, v.setup), got_apart(c, v.setup);
      std::vector<Array> d(4, in_place ? logits : Array(dtype, c.rows * ld));
      const auto both = op(want, d[0], in_place), halves = op(want_apart, d[2], in_place);
      run_op(exec(), both);
      run_pass(context, XCE_FORWARD_BACKWARD, c_args(op(got, d[1], in_place)));
      expect_same(got, want);
      EXPECT_TRUE(d[1].same_bits(d[0]));
      run_op(exec(), CrossEntropyForward{.in = halves.in, .options = halves.options, .out = halves.out});
      run_op(exec(), CrossEntropyBackward{.in = halves.in,
                                          .options = halves.options,
                                          .offset = want_apart.offset.data(),
                                          .logsum = want_apart.logsum.data(),
                                          .upstream = halves.upstream,
                                          .dlogits = halves.dlogits,
                                          .ld_dlogits = ld});
      run_pass(context, XCE_FORWARD, c_args(op(got_apart, d[3], in_place)));
      run_pass(context, XCE_BACKWARD, c_args(op(got_apart, d[3], in_place)));
      expect_same(got_apart, want_apart);
      EXPECT_TRUE(d[3].same_bits(d[2]));
    }
  }
}

TEST_P(CApi, CountEqualsTheOpAndAccumulates) {
  Vector<int32_t> labels = {1, -100, 5, 9, 10, -3, 0};
  Scalar<int64_t> n_valid{-1}, out_of_range{-1}, first_out_of_range{-7};
  Scalar<double> weight_sum{-1};
  xce_loss_count_args args{};
  args.struct_size = sizeof(args);
  args.loss.rows = 7, args.loss.vocab = 10, args.loss.dtype = XCE_FLOAT32, args.loss.label_dtype = XCE_INT32;
  args.loss.labels = labels.data();
  args.loss.n_valid = n_valid.data(), args.loss.out_of_range = out_of_range.data();
  args.loss.weight_sum = weight_sum.data(), args.loss.first_out_of_range = first_out_of_range.data();
  CContext context(on_gpu());
  for (int times = 1; times <= 2; ++times, args.accumulate = 1) {
    ASSERT_TRUE(ok(xce_loss_count(context, &args)));
    EXPECT_EQ(n_valid, 4 * times);
    EXPECT_EQ(out_of_range, 2 * times);
    EXPECT_EQ(weight_sum, 4.0 * times);
    EXPECT_EQ(first_out_of_range, 4);
  }
  const Array class_weights = Array::filled(DType::kF32, 10, 0.5);
  Array token_weights = Array::filled(DType::kF32, 7, 3);
  token_weights.set(2, 0);
  args.accumulate = 0;
  args.loss.class_weights = class_weights.data(), args.loss.token_weights = token_weights.data();
  ASSERT_TRUE(ok(xce_loss_count(context, &args)));
  EXPECT_EQ(n_valid, 3);
  EXPECT_EQ(weight_sum, 4.5);
  args.loss.labels = nullptr, args.loss.probabilities = class_weights.data();  // which are not read
  ASSERT_TRUE(ok(xce_loss_count(context, &args)));
  EXPECT_EQ(n_valid, 6);
  EXPECT_EQ(weight_sum, 18);
  EXPECT_EQ(out_of_range, 0);
  EXPECT_EQ(first_out_of_range, -1);
}

}  // namespace
}  // namespace xce::test

// Every entry point of the C API gives bit for bit what the op behind it gives.
#include "tests/capi/c_args.h"
#include "tests/support/loss_harness.h"

namespace xce::test {
namespace {

class CApi : public DeviceTest {};
INSTANTIATE_TEST_SUITE_P(Devices, CApi, ::testing::ValuesIn(device_names()), device_name);

using Scratch = Vector<std::max_align_t>;

LinearCrossEntropyForwardBackward whole(LossRun& run, size_t budget) {
  return {.in = run.inputs(),
          .options = run.options(),
          .out = run.outputs(),
          .upstream = run.upstream(),
          .grad = run.gradients(),
          .workspace = {.budget_bytes = budget}};
}

// Runs one pass with as much workspace as it asks for.
void run_pass(xce_context* context, xce_pass pass, xce_linear_cross_entropy_args args) {
  size_t bytes = 0;
  ASSERT_TRUE(ok(xce_linear_cross_entropy_workspace_bytes(context, pass, &args, &bytes)));
  EXPECT_LE(bytes, args.workspace_budget_bytes);
  Scratch scratch(bytes / sizeof(std::max_align_t) + 1);
  args.workspace = scratch.data();
  args.workspace_size_bytes = bytes;
  auto call = pass == XCE_FORWARD    ? xce_linear_cross_entropy_forward
              : pass == XCE_BACKWARD ? xce_linear_cross_entropy_backward
                                     : xce_linear_cross_entropy_forward_backward;
  EXPECT_TRUE(ok(call(context, &args)));
}
void run_pass(xce_context* context, xce_pass pass, xce_cross_entropy_args args) {
  size_t bytes = 0;
  ASSERT_TRUE(ok(xce_cross_entropy_workspace_bytes(context, pass, &args, &bytes)));
  Scratch scratch(bytes / sizeof(std::max_align_t) + 1);
  args.workspace = scratch.data();
  args.workspace_size_bytes = bytes;
  auto call = pass == XCE_FORWARD    ? xce_cross_entropy_forward
              : pass == XCE_BACKWARD ? xce_cross_entropy_backward
                                     : xce_cross_entropy_forward_backward;
  EXPECT_TRUE(ok(call(context, &args)));
}

void expect_same(const LossRun& got, const LossRun& want) {
  EXPECT_TRUE(got.loss.same_bits(want.loss));
  EXPECT_TRUE(got.z_loss.same_bits(want.z_loss));
  EXPECT_TRUE(got.row_loss.same_bits(want.row_loss));
  EXPECT_TRUE(got.offset.same_bits(want.offset));
  EXPECT_TRUE(got.logsum.same_bits(want.logsum));
  EXPECT_TRUE(got.dx.same_bits(want.dx));
  EXPECT_TRUE(got.dweight.same_bits(want.dweight));
  EXPECT_TRUE(got.dbias.same_bits(want.dbias));
  EXPECT_EQ(double(got.loss_total), double(want.loss_total));
  EXPECT_EQ(int64_t(got.n_valid), int64_t(want.n_valid));
  EXPECT_EQ(int64_t(got.out_of_range), int64_t(want.out_of_range));
}

std::vector<LossSetup> setups(size_t budget) {
  std::vector<LossSetup> all;
  for (DType dtype : {DType::kF32, DType::kBf16, DType::kF64})
    for (Reduction reduction : {Reduction::kMean, Reduction::kSum, Reduction::kNone})
      all.push_back({.dtype = dtype, .reduction = reduction, .budget_bytes = budget});
  all.push_back({.index = IndexType::kI32, .index_stride = 3, .budget_bytes = budget, .pad_x = 3, .pad_weight = 1});
  all.push_back({.budget_bytes = budget, .accumulate = true, .by_pointer = true});
  all.push_back({.dtype = DType::kBf16, .budget_bytes = budget, .with_dbias = false, .dx_in_accum_dtype = true});
  all.push_back({.reduction = Reduction::kNone, .upstream_stride = 2, .budget_bytes = budget, .with_dx = false});
  return all;
}

LossCase case_for(const LossSetup& s) {
  LossCase c = random_case(s.dtype, 37, 16, 300, 5);
  c.labels[3] = 300, c.labels[4] = -1;  // out of range
  c.z_loss = 0.01;
  c.divisor = 12.5;
  if (s.reduction == Reduction::kNone)
    for (int64_t i = 0; i < c.rows; ++i) c.upstream.push_back(0.25 * static_cast<double>(i % 5) - 0.5);
  else
    c.upstream = {-2};
  return c;
}

TEST_P(CApi, LinearCrossEntropyEqualsTheOp) {
  CContext context(on_gpu());
  for (size_t budget : {size_t{8} << 20, size_t{40} << 10}) {
    for (const LossSetup& s : setups(budget)) {
      SCOPED_TRACE(str(name_of(s.dtype), " reduction ", static_cast<int>(s.reduction), " budget ", budget));
      LossCase c = case_for(s);
      LossRun want(c, s), got(c, s);
      want.forward_backward(exec());
      run_pass(context, XCE_FORWARD_BACKWARD, c_args(whole(got, budget)));
      expect_same(got, want);
      ASSERT_NE(double(want.loss[0]), 0);

      LossRun want_apart(c, s), got_apart(c, s);
      want_apart.forward(exec());
      want_apart.backward(exec());
      run_pass(context, XCE_FORWARD, c_args(whole(got_apart, budget)));
      run_pass(context, XCE_BACKWARD, c_args(whole(got_apart, budget)));
      expect_same(got_apart, want_apart);
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
  xce_linear_cross_entropy_args args = c_args(whole(got, size_t{1} << 20));
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
  xce_linear_cross_entropy_args args = c_args(whole(got, size_t{1} << 20));
  EXPECT_EQ(args.loss.upstream_is_scalar, 1);
  run_pass(context, XCE_FORWARD_BACKWARD, args);
  c.own_mean = false, c.divisor = 1;
  expect_gradients(got, reference_linear_cross_entropy(c), s);
}

TEST_P(CApi, CrossEntropyEqualsTheOp) {
  CContext context(on_gpu());
  const int64_t rows = 21, vocab = 130, ld = 137;
  for (DType dtype : {DType::kF32, DType::kBf16, DType::kF64}) {
    SCOPED_TRACE(name_of(dtype));
    const DType accum = accum_dtype(dtype);
    const Array logits = Array::normal(dtype, rows * ld, 11, 2);
    Vector<int64_t> labels;
    for (int64_t i = 0; i < rows; ++i) labels.push_back(i % 6 == 5 ? -100 : i * 7 % vocab);
    struct Out {
      Array dlogits, loss, row_loss, offset, logsum;
      Out(DType dtype, DType accum, int64_t rows, int64_t ld)
          : dlogits(dtype, rows * ld),
            loss(accum, 1),
            row_loss(accum, rows),
            offset(accum, rows),
            logsum(accum, rows) {}
    };
    auto op = [&](Out& out, bool in_place) {
      return CrossEntropyForwardBackward{.in = {.logits = in_place ? out.dlogits.data() : logits.data(),
                                                .targets = {.index = labels.data(), .type = IndexType::kI64},
                                                .rows = rows,
                                                .vocab = vocab,
                                                .dtype = dtype,
                                                .ld = ld},
                                         .options = {.z_loss = 0.02},
                                         .out = {.loss = out.loss.data(),
                                                 .row_loss = out.row_loss.data(),
                                                 .offset = out.offset.data(),
                                                 .logsum = out.logsum.data()},
                                         .upstream = {},
                                         .dlogits = out.dlogits.data(),
                                         .ld_dlogits = ld};
    };
    auto c_call = [&](Out& out, bool in_place) {
      const CrossEntropyForwardBackward call = op(out, in_place);
      xce_cross_entropy_args args{};
      args.struct_size = sizeof(args);
      set_targets(args.loss, call.in.targets);
      set_options(args.loss, call.options);
      set_outputs(args.loss, call.out);
      args.loss.rows = rows, args.loss.vocab = vocab, args.loss.dtype = c_dtype(dtype);
      args.logits = call.in.logits, args.ld = ld;
      args.dlogits = call.dlogits, args.ld_dlogits = ld;
      return args;
    };
    auto expect_equal = [](const Out& got, const Out& want) {
      EXPECT_TRUE(got.dlogits.same_bits(want.dlogits));
      EXPECT_TRUE(got.loss.same_bits(want.loss));
      EXPECT_TRUE(got.row_loss.same_bits(want.row_loss));
      EXPECT_TRUE(got.offset.same_bits(want.offset));
      EXPECT_TRUE(got.logsum.same_bits(want.logsum));
    };
    for (bool in_place : {false, true}) {
      Out want(dtype, accum, rows, ld), got(dtype, accum, rows, ld), apart(dtype, accum, rows, ld);
      if (in_place)
        for (Out* out : {&want, &got, &apart}) out->dlogits = logits;
      CrossEntropyForwardBackward call = op(want, in_place);
      Scratch scratch(workspace_bytes(exec(), call) / sizeof(std::max_align_t) + 1);
      call.workspace = scratch.data(), call.workspace_size_bytes = scratch.size() * sizeof(std::max_align_t);
      run(exec(), call);
      run_pass(context, XCE_FORWARD_BACKWARD, c_call(got, in_place));
      expect_equal(got, want);
      run_pass(context, XCE_FORWARD, c_call(apart, in_place));
      run_pass(context, XCE_BACKWARD, c_call(apart, in_place));
      expect_equal(apart, want);
    }
  }
}

TEST_P(CApi, CountEqualsTheOpAndAccumulates) {
  Vector<int32_t> labels = {1, -100, 5, 9, 10, -3, 0};
  Scalar<int64_t> n_valid{-1}, out_of_range{-1};
  Scalar<double> weight_sum{-1};
  xce_loss_count_args args{};
  args.struct_size = sizeof(args);
  args.loss.rows = 7, args.loss.vocab = 10, args.loss.dtype = XCE_FLOAT32, args.loss.label_dtype = XCE_INT32;
  args.loss.labels = labels.data();
  args.loss.n_valid = n_valid.data(), args.loss.out_of_range = out_of_range.data();
  args.loss.weight_sum = weight_sum.data();
  CContext context(on_gpu());
  for (int times = 1; times <= 2; ++times, args.accumulate = 1) {
    ASSERT_TRUE(ok(xce_loss_count(context, &args)));
    EXPECT_EQ(n_valid, 4 * times);
    EXPECT_EQ(out_of_range, 2 * times);
    EXPECT_EQ(weight_sum, 4.0 * times);
  }
}

// Two shards, by begin / merge / finish and by forward / merge / from_statistics / backward: as the whole vocabulary,
// whose reference the ops' own tests compare with.
class CApiShards : public CApi {
 protected:
  static constexpr int64_t kShard = 180, kVocab = 300;  // the second is padded

  struct Rank {
    LossCase c;
    LossRun run;
    Rank(const LossCase& whole, const LossSetup& s, int64_t offset) : c(part(whole, offset)), run(c, s) {}
    static LossCase part(const LossCase& whole, int64_t offset) {
      LossCase c = whole;
      c.vocab = kShard;
      c.weight.assign(kShard * c.hidden, 0.5);
      c.bias.assign(kShard, 0.25);
      for (int64_t v = 0; v < kShard && offset + v < kVocab; ++v) {
        c.bias[v] = whole.bias[offset + v];
        for (int64_t h = 0; h < c.hidden; ++h) c.weight[v * c.hidden + h] = whole.weight[(offset + v) * c.hidden + h];
      }
      return c;
    }
  };
  xce_linear_cross_entropy_args args_of(Rank& rank, int64_t offset, size_t budget) const {
    xce_linear_cross_entropy_args args = c_args(whole(rank.run, budget));
    args.loss.shard_offset = offset, args.loss.vocab_global = kVocab;
    args.plan_vocab = kShard;
    return args;
  }
  static xce_loss_statistics_args sets_of(const xce_loss& loss, Array& sets, Array& merged, int64_t rows) {
    xce_loss_statistics_args args{};
    args.struct_size = sizeof(args);
    args.loss = loss;
    args.sets = sets.data(), args.count = 2, args.rows = rows, args.statistics = merged.data();
    return args;
  }
  static void expect_whole(Rank* ranks[2], const LossAnswer& want, bool on_gpu) {
    const double bar = weight_gradient_bar(DType::kF32, on_gpu, want.max_logit);
    std::vector<double> dx(want.dx.size()), dweight;
    for (int k = 0; k < 2; ++k) {
      LossRun& run = ranks[k]->run;
      EXPECT_NEAR(run.loss[0], want.loss, loss_bar(DType::kF32, want.loss, want.max_logit));
      EXPECT_EQ(run.n_valid, want.n_valid);
      for (size_t i = 0; i < dx.size(); ++i) dx[i] += run.dx[i];
      for (int64_t i = 0; i < run.dweight.size(); ++i)
        if (dweight.size() < want.dweight.size()) dweight.push_back(run.dweight[i]);
    }
    EXPECT_LE(relative_l2(dx, want.dx), bar);
    EXPECT_LE(relative_l2(dweight, want.dweight), bar);
  }
};
INSTANTIATE_TEST_SUITE_P(Devices, CApiShards, ::testing::ValuesIn(device_names()), device_name);

TEST_P(CApiShards, BeginMergeFinishEqualTheWhole) {
  LossCase c = random_case(DType::kF32, 90, 16, kVocab, 31);
  const LossAnswer want = reference_linear_cross_entropy(c);
  for (size_t budget : {size_t{8} << 20, size_t{20} << 10}) {
    SCOPED_TRACE(budget);
    Rank first(c, {}, 0), second(c, {}, kShard);
    Rank* ranks[2] = {&first, &second};
    CContext context(on_gpu());
    xce_linear_cross_entropy_args args[2] = {args_of(first, 0, budget), args_of(second, kShard, budget)};
    int64_t count = 0, rows_per_chunk = 0;
    ASSERT_TRUE(ok(xce_linear_cross_entropy_chunks(context, &args[0], &count, &rows_per_chunk)));
    EXPECT_TRUE(on_gpu() || (count > 1) == (budget < (size_t{1} << 20)));
    Scratch scratch[2];
    for (int k = 0; k < 2; ++k) {
      size_t bytes = 0;
      ASSERT_TRUE(ok(xce_linear_cross_entropy_workspace_bytes(context, XCE_BEGIN_FINISH, &args[k], &bytes)));
      scratch[k].resize(bytes / sizeof(std::max_align_t) + 1);
      args[k].workspace = scratch[k].data(), args[k].workspace_size_bytes = bytes;
    }
    for (int64_t chunk = 0; chunk < count; ++chunk) {
      const int64_t rows = std::min(rows_per_chunk, c.rows - chunk * rows_per_chunk);
      Array sets(DType::kF32, 2 * 3 * rows), merged(DType::kF32, 3 * rows);
      xce_loss_statistics_args merge = sets_of(args[0].loss, sets, merged, rows);
      size_t set_bytes = 0;
      ASSERT_TRUE(ok(xce_loss_statistics_bytes(context, &merge, &set_bytes)));
      ASSERT_EQ(set_bytes, 3 * rows * sizeof(float));
      for (int k = 0; k < 2; ++k)
        ASSERT_TRUE(ok(
            xce_linear_cross_entropy_begin(context, &args[k], chunk, static_cast<char*>(sets.data()) + k * set_bytes)));
      ASSERT_TRUE(ok(xce_loss_merge_statistics(context, &merge)));
      for (int k = 0; k < 2; ++k)
        ASSERT_TRUE(ok(xce_linear_cross_entropy_finish(context, &args[k], chunk, merged.data())));
      EXPECT_TRUE(sets.guards_intact() && merged.guards_intact());
    }
    expect_whole(ranks, want, on_gpu());
  }
}

TEST_P(CApiShards, ForwardMergeFromStatisticsBackwardEqualTheWhole) {
  LossCase c = random_case(DType::kF32, 90, 16, kVocab, 32);
  const LossAnswer want = reference_linear_cross_entropy(c);
  Rank first(c, {}, 0), second(c, {}, kShard);
  Rank* ranks[2] = {&first, &second};
  CContext context(on_gpu());
  const size_t budget = size_t{1} << 20;
  xce_linear_cross_entropy_args args[2] = {args_of(first, 0, budget), args_of(second, kShard, budget)};
  Array sets(DType::kF32, 2 * 3 * c.rows), merged(DType::kF32, 3 * c.rows);
  for (int k = 0; k < 2; ++k) {
    xce_linear_cross_entropy_args statistics = args[k];
    set_outputs(statistics.loss, {});
    statistics.statistics = static_cast<float*>(sets.data()) + k * 3 * c.rows;
    run_pass(context, XCE_FORWARD, statistics);
  }
  xce_loss_statistics_args merge = sets_of(args[0].loss, sets, merged, c.rows);
  ASSERT_TRUE(ok(xce_loss_merge_statistics(context, &merge)));
  for (int k = 0; k < 2; ++k) {
    xce_loss_statistics_args from = sets_of(args[k].loss, sets, merged, c.rows);
    ASSERT_TRUE(ok(xce_loss_from_statistics(context, &from)));
    run_pass(context, XCE_BACKWARD, args[k]);
  }
  expect_whole(ranks, want, on_gpu());
}

}  // namespace
}  // namespace xce::test

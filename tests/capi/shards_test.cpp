// A vocabulary in two shards, through the C API.
#include "tests/capi/c_calls.h"

namespace xce::test {
namespace {

// Two shards, by begin / merge / finish and by forward / merge / from_statistics / backward: as the whole vocabulary,
// whose reference the ops' own tests compare with.
class CApiShards : public DeviceTest {
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
      if (c.probabilities.empty()) return c;
      c.probabilities.assign(c.rows * kShard, std::nan(""));  // of padding
      for (int64_t i = 0; i < c.rows; ++i)
        for (int64_t v = 0; v < kShard && offset + v < kVocab; ++v)
          c.probabilities[i * kShard + v] = whole.probabilities[i * kVocab + offset + v];
      return c;
    }
  };
  // Without options, with all of them, and with probability targets.
  enum Options { kPlain, kAll, kProbabilities };
  static LossCase case_with(Options options, uint64_t seed) {
    LossCase c = random_case(DType::kF32, 90, 16, kVocab, seed);
    if (options == kPlain) return c;
    for (int64_t v = 0; v < kVocab; ++v) c.class_weights.push_back(0.25 + 0.125 * static_cast<double>(v % 7));
    for (int64_t i = 0; i < c.rows; ++i) c.token_weights.push_back(0.5 * static_cast<double>(i % 4));
    c.label_smoothing = 0.125, c.softcap = 3, c.logit_scale = 0.75, c.z_loss = 0.01;
    if (options == kAll) return c;
    c.labels.clear();
    for (int64_t i = 0; i < c.rows * kVocab; ++i) c.probabilities.push_back(static_cast<double>(i * i % 8) / 1024);
    return c;
  }

  xce_linear_cross_entropy_args args_of(Rank& rank, int64_t offset, size_t budget) const {
    xce_linear_cross_entropy_args args = c_args(call_of(rank.run, budget));
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
      EXPECT_NEAR(run.weight_sum, want.weight_sum, 1e-12 * want.weight_sum);
      EXPECT_EQ(run.n_correct, run.has_labels() ? want.n_correct : -7);
      for (size_t i = 0; i < want.entropy.size(); ++i) {
        EXPECT_EQ(run.argmax(static_cast<int64_t>(i)), want.argmax[i]) << "row " << i;
        EXPECT_NEAR(run.row_entropy[i], want.entropy[i], loss_bar(DType::kF32, want.entropy[i], want.max_logit));
      }
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
  for (auto [options, budget] : {std::pair{kPlain, size_t{8} << 20},
                                 {kPlain, size_t{20} << 10},
                                 {kAll, size_t{20} << 10},
                                 {kAll, size_t{8} << 20},
                                 {kProbabilities, size_t{20} << 10}}) {
    SCOPED_TRACE(str("options ", static_cast<int>(options), " budget ", budget));
    const LossCase c = case_with(options, 31);
    const LossAnswer want = reference_linear_cross_entropy(c);
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
      Array sets(DType::kF64, 2 * kLossStatistics * rows), merged(DType::kF64, kLossStatistics * rows);
      xce_loss_statistics_args merge = sets_of(args[0].loss, sets, merged, rows);
      size_t set_bytes = 0;
      ASSERT_TRUE(ok(xce_loss_statistics_bytes(context, &merge, &set_bytes)));
      ASSERT_EQ(set_bytes, kLossStatistics * rows * sizeof(double));
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
  for (Options options : {kPlain, kAll, kProbabilities}) {
    SCOPED_TRACE(str("options ", static_cast<int>(options)));
    const LossCase c = case_with(options, 32);
    const LossAnswer want = reference_linear_cross_entropy(c);
    Rank first(c, {}, 0), second(c, {}, kShard);
    Rank* ranks[2] = {&first, &second};
    CContext context(on_gpu());
    const size_t budget = size_t{1} << 20;
    xce_linear_cross_entropy_args args[2] = {args_of(first, 0, budget), args_of(second, kShard, budget)};
    Array sets(DType::kF64, 2 * kLossStatistics * c.rows), merged(DType::kF64, kLossStatistics * c.rows);
    for (int k = 0; k < 2; ++k) {
      xce_linear_cross_entropy_args statistics = args[k];
      set_outputs(statistics.loss, {});
      statistics.statistics = static_cast<double*>(sets.data()) + k * kLossStatistics * c.rows;
      run_pass(context, XCE_FORWARD, statistics);
    }
    xce_loss_statistics_args merge = sets_of(args[0].loss, sets, merged, c.rows);
    ASSERT_TRUE(ok(xce_loss_merge_statistics(context, &merge)));
    for (int k = 0; k < 2; ++k) {
      xce_loss_statistics_args from = sets_of(args[k].loss, sets, merged, c.rows);
      ASSERT_TRUE(ok(xce_loss_from_statistics(context, &from)));
      args[k].statistics = merged.data();  // read with probabilities
      run_pass(context, XCE_BACKWARD, args[k]);
    }
    expect_whole(ranks, want, on_gpu());
  }
}

}  // namespace
}  // namespace xce::test

// A head cut over the vocabulary: every rank's statistics merged by hand, uneven and padded shards against the whole.
#include <gtest/gtest.h>

#include <memory>

#include "tests/support/device_test.h"
#include "tests/support/loss_harness.h"

namespace xce::test {
namespace {

class LinearCrossEntropyShards : public DeviceTest {};
INSTANTIATE_TEST_SUITE_P(Devices, LinearCrossEntropyShards, ::testing::ValuesIn(device_names()), device_name);

struct Part {
  int64_t offset, cols;  // of global labels; columns at or beyond the vocabulary are padding, their weights NaN
};

// One rank of a sharded head: its rows of the weights and its own outputs and workspace.
struct Rank {
  Part part;
  Array weight, bias, dx, dweight, dbias, loss, row_loss, offset, logsum;
  Vector<char> scratch;
  Scalar<int64_t> n_valid{-1};

  Rank(const LossCase& c, DType dtype, Part p)
      : part(p),
        weight(dtype, p.cols * c.hidden),
        bias(dtype, p.cols),
        dx(accum_dtype(dtype), c.rows * c.hidden),
        dweight(accum_dtype(dtype), p.cols * c.hidden),
        dbias(accum_dtype(dtype), p.cols),
        loss(accum_dtype(dtype), 1),
        row_loss(accum_dtype(dtype), c.rows),
        offset(accum_dtype(dtype), c.rows),
        logsum(accum_dtype(dtype), c.rows) {
    for (int64_t v = 0; v < p.cols && p.offset + v < c.vocab; ++v) {
      bias.set(v, c.bias[p.offset + v]);
      for (int64_t h = 0; h < c.hidden; ++h) weight.set(v * c.hidden + h, c.weight[(p.offset + v) * c.hidden + h]);
    }
  }
};

class Sharded {
 public:
  Sharded(const LossCase& c, DType dtype, const std::vector<Part>& parts, size_t budget)
      : c_(c), dtype_(dtype), budget_(budget), x_(dtype, c.rows * c.hidden), labels_(c.labels.begin(), c.labels.end()) {
    for (int64_t i = 0; i < x_.size(); ++i) x_.set(i, c.x[i]);
    for (const Part& part : parts) {
      ranks_.push_back(std::make_unique<Rank>(c, dtype, part));
      largest_ = std::max(largest_, part.cols);
    }
  }

  LinearCrossEntropyForwardBackward call(Rank& r) {
    return {
        .in = {.x = x_.data(),
               .weight = r.weight.data(),
               .bias = r.bias.data(),
               .targets = {.index = labels_.data(), .type = IndexType::kI64},
               .rows = c_.rows,
               .hidden = c_.hidden,
               .vocab = r.part.cols,
               .dtype = dtype_,
               .shard_offset = r.part.offset,
               .vocab_global = c_.vocab},
        .options = {.z_loss = c_.z_loss},
        .out = {.loss = r.loss.data(),
                .row_loss = r.row_loss.data(),
                .offset = r.offset.data(),
                .logsum = r.logsum.data(),
                .n_valid = r.n_valid.data()},
        .upstream = {},
        .grad = {.dx = r.dx.data(), .dweight = r.dweight.data(), .dbias = r.dbias.data(), .dx_in_accum_dtype = true},
        .workspace = {.budget_bytes = budget_, .data = r.scratch.data(), .size_bytes = r.scratch.size()}};
  }

  LossChunks chunks_of(const Exec& exec, Rank& r) {
    return std::visit([&](const auto& device) { return chunks(device, call(r), largest_); }, exec);
  }
  int64_t begin_finish(const Exec& exec) {
    LossChunks cut = chunks_of(exec, *ranks_[0]);
    for (auto& r : ranks_) {
      EXPECT_EQ(chunks_of(exec, *r).count, cut.count);
      LinearCrossEntropyBegin begin{.call = call(*r), .chunk = 0, .statistics = nullptr, .plan_vocab = largest_};
      r->scratch.assign(workspace_bytes(exec, begin), -1);
    }
    for (int64_t chunk = 0; chunk < cut.count; ++chunk) {
      int64_t rows = std::min(cut.rows_per_chunk, c_.rows - chunk * cut.rows_per_chunk);
      Vector<double> sets(kLossStatistics * rows * ranks_.size(), NAN), merged(kLossStatistics * rows, NAN);
      for (size_t k = 0; k < ranks_.size(); ++k) {
        double* set = sets.data() + k * kLossStatistics * rows;
        run(exec, LinearCrossEntropyBegin{
                      .call = call(*ranks_[k]), .chunk = chunk, .statistics = set, .plan_vocab = largest_});
      }
      merge(exec, sets, merged, rows);
      for (auto& r : ranks_)
        run(exec, LinearCrossEntropyFinish{
                      .call = call(*r), .chunk = chunk, .statistics = merged.data(), .plan_vocab = largest_});
    }
    return cut.count;
  }

  void forward_then_backward(const Exec& exec) {
    Vector<double> sets(kLossStatistics * c_.rows * ranks_.size(), NAN), merged(kLossStatistics * c_.rows, NAN);
    for (size_t k = 0; k < ranks_.size(); ++k) {
      Rank& r = *ranks_[k];
      LinearCrossEntropyForward args{.in = call(r).in,
                                     .options = call(r).options,
                                     .out = {},
                                     .workspace = {.budget_bytes = budget_},
                                     .statistics = sets.data() + k * kLossStatistics * c_.rows};
      r.scratch.assign(workspace_bytes(exec, args), -1);
      args.workspace.data = r.scratch.data();
      args.workspace.size_bytes = r.scratch.size();
      run(exec, args);
    }
    merge(exec, sets, merged, c_.rows);
    for (auto& rank : ranks_) {
      Rank& r = *rank;
      run(exec, LossFromStatistics{.statistics = merged.data(),
                                   .targets = call(r).in.targets,
                                   .rows = c_.rows,
                                   .vocab_global = c_.vocab,
                                   .dtype = dtype_,
                                   .options = call(r).options,
                                   .out = call(r).out});
      LinearCrossEntropyBackward args{.in = call(r).in,
                                      .options = call(r).options,
                                      .offset = r.offset.data(),
                                      .logsum = r.logsum.data(),
                                      .upstream = {},
                                      .grad = call(r).grad,
                                      .workspace = {.budget_bytes = budget_}};
      r.scratch.assign(workspace_bytes(exec, args), -1);
      args.workspace.data = r.scratch.data();
      args.workspace.size_bytes = r.scratch.size();
      run(exec, args);
    }
  }

  void expect_equal_to(const LossAnswer& want, bool on_gpu) const {
    double bar = weight_gradient_bar(dtype_, on_gpu, want.max_logit);
    std::vector<double> dx(c_.rows * c_.hidden, 0.0), dweight, dbias;
    for (const auto& r : ranks_) {
      EXPECT_NEAR(r->loss[0], want.loss, loss_bar(dtype_, want.loss, want.max_logit));
      EXPECT_EQ(r->n_valid, want.n_valid);
      for (int64_t i = 0; i < c_.rows; ++i) {
        ASSERT_NEAR(r->row_loss[i], want.row_loss[i], loss_bar(dtype_, want.row_loss[i], want.max_logit));
        ASSERT_NEAR(r->offset[i] + r->logsum[i], want.lse[i], loss_bar(dtype_, want.lse[i], want.max_logit));
      }
      for (size_t i = 0; i < dx.size(); ++i) dx[i] += r->dx[i];
      for (int64_t v = 0; v < r->part.cols; ++v) {
        bool padding = r->part.offset + v >= c_.vocab;
        if (!padding) dbias.push_back(r->dbias[v]);
        if (padding) {
          EXPECT_EQ(r->dbias[v], 0);
        }
        for (int64_t h = 0; h < c_.hidden; ++h) {
          if (padding)
            ASSERT_EQ(r->dweight[v * c_.hidden + h], 0);
          else
            dweight.push_back(r->dweight[v * c_.hidden + h]);
        }
      }
    }
    EXPECT_LE(relative_l2(dx, want.dx), bar);
    EXPECT_LE(relative_l2(dweight, want.dweight), bar);
    EXPECT_LE(relative_l2(dbias, want.dbias), bar);
  }

 private:
  void merge(const Exec& exec, const Vector<double>& sets, Vector<double>& merged, int64_t rows) {
    run(exec,
        LossMergeStatistics{.sets = sets.data(), .merged = merged.data(), .count = std::ssize(ranks_), .rows = rows});
  }

  const LossCase& c_;
  DType dtype_;
  size_t budget_;
  Array x_;
  Vector<int64_t> labels_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  int64_t largest_ = 0;
};

const std::vector<std::vector<Part>> kCuts = {
    {{0, 700}},                          // one shard, the whole
    {{0, 350}, {350, 350}},              // even
    {{0, 5}, {5, 600}, {605, 95}},       // uneven
    {{0, 256}, {256, 256}, {512, 256}},  // the last padded
    {{0, 400}, {400, 400}, {800, 400}},  // the last nothing but padding
};

LossCase sharded_case(DType dtype) {
  LossCase c = random_case(dtype, 90, 16, 700, 21);
  c.labels[0] = 700, c.labels[1] = 701, c.labels[2] = -7;  // in the padding, or nowhere: out of range on every rank
  c.z_loss = 0.001;
  return c;
}

TEST_P(LinearCrossEntropyShards, BeginAndFinishEqualTheWhole) {
  for (DType dtype : {DType::kF32, DType::kBf16, DType::kF16, DType::kF64}) {
    LossCase c = sharded_case(dtype);
    LossAnswer want = reference_linear_cross_entropy(c);
    for (const auto& parts : kCuts) {
      for (size_t budget : {size_t{8} << 20, size_t{20} << 10}) {
        SCOPED_TRACE(str(name_of(dtype), " ", parts.size(), " shards, budget ", budget));
        Sharded head(c, dtype, parts, budget);
        int64_t count = head.begin_finish(exec());
        EXPECT_TRUE(on_gpu() || (count == 1) == (budget > (size_t{1} << 20)));
        head.expect_equal_to(want, on_gpu());
      }
    }
  }
}

TEST_P(LinearCrossEntropyShards, ForwardMergeBackwardEqualsTheWhole) {
  for (DType dtype : {DType::kF32, DType::kBf16, DType::kF16, DType::kF64}) {
    LossCase c = sharded_case(dtype);
    LossAnswer want = reference_linear_cross_entropy(c);
    for (const auto& parts : kCuts) {
      SCOPED_TRACE(str(name_of(dtype), " ", parts.size(), " shards"));
      Sharded head(c, dtype, parts, size_t{60} << 10);
      head.forward_then_backward(exec());
      head.expect_equal_to(want, on_gpu());
    }
  }
}

// A vocabulary padded to a convenient size without any sharding: vocab_global below vocab.
TEST_P(LinearCrossEntropyShards, PaddedVocabularyInOneCall) {
  LossCase c = random_case(DType::kF32, 50, 8, 70, 22);
  LossAnswer want = reference_linear_cross_entropy(c);
  LossCase padded = c;
  padded.vocab = 128;
  padded.weight.resize(padded.vocab * c.hidden, std::nan(""));
  padded.bias.resize(padded.vocab, std::nan(""));
  LossRun got(padded, {});
  LinearCrossEntropyForwardBackward call{.in = got.inputs(),
                                         .options = {},
                                         .out = got.outputs(),
                                         .upstream = {},
                                         .grad = got.gradients(),
                                         .workspace = {}};
  call.in.vocab_global = 70;
  got.launch_with_workspace(exec(), call, call.workspace);
  want.dweight.resize(padded.vocab * c.hidden, 0.0);
  want.dbias.resize(padded.vocab, 0.0);
  expect_loss(got, want, DType::kF32);
  expect_gradients(got, want, {});
}

}  // namespace
}  // namespace xce::test

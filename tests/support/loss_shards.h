// A loss cut over the vocabulary: every rank's statistics merged by hand, its results and gradients put together again.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "tests/support/cross_entropy_harness.h"
#include "tests/support/loss_harness.h"

namespace xce::test {

// Of global labels; columns at or beyond the vocabulary are padding, all that is given of them NaN.
struct Part {
  int64_t offset, cols;
};

// One rank: its part of the columns, its own outputs, gradients and workspace. Labels and class weights are global.
struct ShardRank : LossCall {
  Part part;
  Array weight, bias, logits, probabilities, dx, dweight, dbias, dlogits;
  Vector<char> scratch;

  ShardRank(const LogitsCase& l, const LossSetup& s, Part p)
      : LossCall(l.c, s),
        part(p),
        weight(s.dtype, p.cols * l.c.hidden),
        bias(s.dtype, p.cols),
        logits(s.dtype, std::ssize(l.y) == 0 ? 0 : l.c.rows * p.cols),
        probabilities(s.probability_type, l.c.probabilities.empty() ? 0 : l.c.rows * p.cols),
        dx(accum_, l.c.rows * l.c.hidden),
        dweight(s.dweight_in_dtype ? s.dtype : accum_, p.cols * l.c.hidden),
        dbias(dweight.dtype(), p.cols),
        dlogits(s.dtype, logits.size()) {
    const LossCase& c = l.c;
    for (int64_t v = 0; v < real_cols(); ++v) {
      if (!c.bias.empty()) bias.set(v, c.bias[p.offset + v]);
      for (int64_t h = 0; h < c.hidden; ++h) weight.set(v * c.hidden + h, c.weight[(p.offset + v) * c.hidden + h]);
      for (int64_t i = 0; i < c.rows; ++i) {
        const int64_t from = i * c.vocab + p.offset + v, to = i * p.cols + v;
        if (logits.size() > 0) logits.set(to, l.y[from]);
        if (probabilities.size() > 0) probabilities.set(to, c.probabilities[from]);
      }
    }
  }
  int64_t real_cols() const { return std::clamp<int64_t>(c_.vocab - part.offset, 0, part.cols); }
  LossTargets shard_targets() const {
    LossTargets targets = LossCall::targets();
    if (targets.probabilities) targets.probabilities = probabilities.data(), targets.ld_probabilities = 0;
    return targets;
  }
};

class LossShards {
 public:
  LossShards(const LogitsCase& l, const LossSetup& s, const std::vector<Part>& parts) : l_(l), c_(l_.c), s_(s) {
    s_.dx_in_accum_dtype = true;
    for (const Part& part : parts) {
      ranks_.push_back(std::make_unique<ShardRank>(l_, s_, part));
      largest_ = std::max(largest_, part.cols);
    }
  }
  LossShards(const LossCase& c, const LossSetup& s, const std::vector<Part>& parts)
      : LossShards(LogitsCase{c, {}}, s, parts) {}

  // The number of chunks.
  int64_t begin_finish(const Exec& exec) {
    if (s_.budget_factor != 0) s_.budget_bytes = scaled_budget(exec);
    const LossChunks cut = chunks_of(exec, *ranks_[0]);
    for (auto& r : ranks_) {
      EXPECT_EQ(chunks_of(exec, *r).count, cut.count);
      EXPECT_EQ(chunks_of(exec, *r).rows_per_chunk, cut.rows_per_chunk);
      LinearCrossEntropyBegin begin{.call = call(exec, *r), .chunk = 0, .statistics = nullptr, .plan_vocab = largest_};
      r->scratch.assign(workspace_bytes(exec, begin), -1);
    }
    for (int64_t chunk = 0; chunk < cut.count; ++chunk) {
      const int64_t rows = std::min(cut.rows_per_chunk, c_.rows - chunk * cut.rows_per_chunk);
      Statistics statistics(std::ssize(ranks_), rows);
      for (size_t k = 0; k < ranks_.size(); ++k)
        run(exec, LinearCrossEntropyBegin{.call = call(exec, *ranks_[k]),
                                          .chunk = chunk,
                                          .statistics = statistics.of_rank(k),
                                          .plan_vocab = largest_});
      statistics.merge(exec);
      for (auto& r : ranks_)
        run(exec,
            LinearCrossEntropyFinish{
                .call = call(exec, *r), .chunk = chunk, .statistics = statistics.merged(), .plan_vocab = largest_});
      EXPECT_TRUE(statistics.guards_intact());
    }
    return cut.count;
  }

  void forward_then_backward(const Exec& exec) {
    Statistics statistics(std::ssize(ranks_), c_.rows);
    for (size_t k = 0; k < ranks_.size(); ++k) {
      const auto whole = call(exec, *ranks_[k]);
      LinearCrossEntropyForward args{.in = whole.in,
                                     .options = whole.options,
                                     .out = {},
                                     .workspace = {.budget_bytes = s_.budget_bytes},
                                     .statistics = statistics.of_rank(k)};
      scale_budget(exec, args);
      with_scratch(exec, *ranks_[k], args);
    }
    losses(exec, statistics);
    for (auto& r : ranks_) {
      const auto whole = call(exec, *r);
      LinearCrossEntropyBackward args{.in = whole.in,
                                      .options = whole.options,
                                      .offset = r->offset.data(),
                                      .logsum = r->logsum.data(),
                                      .upstream = whole.upstream,
                                      .grad = whole.grad,
                                      .workspace = {.budget_bytes = s_.budget_bytes}};
      scale_budget(exec, args);
      if (!r->has_labels()) args.in.targets.probability_mass = statistics.mass();
      with_scratch(exec, *r, args);
    }
  }

  // Of cross-entropy over given logits.
  void logits_forward_then_backward(const Exec& exec) {
    Statistics statistics(std::ssize(ranks_), c_.rows);
    for (size_t k = 0; k < ranks_.size(); ++k) {
      CrossEntropyForward args{.in = logits_inputs(*ranks_[k]),
                               .options = ranks_[k]->options(),
                               .out = {},
                               .statistics = statistics.of_rank(k)};
      with_scratch(exec, *ranks_[k], args);
      if (ranks_[k]->part.offset == 0 && ranks_[k]->part.cols >= c_.vocab) continue;
      args.out.loss = ranks_[k]->loss.data();
      EXPECT_THROW(with_scratch(exec, *ranks_[k], args), Error);  // a shard alone knows no loss
    }
    losses(exec, statistics);
    for (auto& r : ranks_) {
      CrossEntropyBackward args{.in = logits_inputs(*r),
                                .options = r->options(),
                                .offset = r->offset.data(),
                                .logsum = r->logsum.data(),
                                .upstream = r->upstream(),
                                .dlogits = s_.in_place ? r->logits.data() : r->dlogits.data()};
      if (!r->has_labels()) args.in.targets.probability_mass = statistics.mass();
      with_scratch(exec, *r, args);
    }
  }

  const std::vector<std::unique_ptr<ShardRank>>& ranks() const { return ranks_; }
  void expect_equal_to(const LossAnswer& want) const {
    for (const auto& r : ranks_) expect_loss(*r, want, s_.dtype);
    const bool on_gpu = ranks_[0]->on_gpu;
    const double bar = weight_gradient_bar(s_.dtype, on_gpu, want.max_logit);
    const double dweight_bar = s_.dweight_in_dtype ? std::max(bar, gradient_bar(s_.dtype, want.max_logit)) : bar;
    std::vector<double> dx(c_.rows * c_.hidden, 0.0), dweight, dbias;
    for (const auto& r : ranks_) {
      for (size_t i = 0; i < dx.size(); ++i) dx[i] += r->dx[i];
      for (int64_t v = 0; v < r->real_cols(); ++v) {
        dbias.push_back(r->dbias[v]);
        for (int64_t h = 0; h < c_.hidden; ++h) dweight.push_back(r->dweight[v * c_.hidden + h]);
      }
      for (int64_t v = r->real_cols(); v < r->part.cols; ++v) {
        EXPECT_EQ(r->dbias[v], 0);
        for (int64_t h = 0; h < c_.hidden; ++h) ASSERT_EQ(r->dweight[v * c_.hidden + h], 0) << "padding";
      }
    }
    const DType kept = ranks_[0]->dweight.dtype();
    EXPECT_TRUE(close_values(dx, want.dx, accum_dtype(s_.dtype), bar, {want.dx_terms, s_.by_terms})) << "dx";
    EXPECT_TRUE(close_values(dweight, want.dweight, kept, dweight_bar, {want.dweight_terms, s_.by_terms})) << "dweight";
    EXPECT_TRUE(close_values(dbias, want.dbias, kept, dweight_bar, {want.dbias_terms, s_.by_terms})) << "dbias";
  }
  void expect_logits_equal_to(const LossAnswer& want) const {
    std::vector<double> dlogits(c_.rows * c_.vocab, std::nan(""));
    for (const auto& r : ranks_) {
      expect_loss(*r, want, s_.dtype);
      const Array& got = s_.in_place ? r->logits : r->dlogits;
      for (int64_t i = 0; i < c_.rows; ++i) {
        for (int64_t v = 0; v < r->real_cols(); ++v)
          dlogits[i * c_.vocab + r->part.offset + v] = got[i * r->part.cols + v];
        for (int64_t v = r->real_cols(); v < r->part.cols; ++v) ASSERT_EQ(got[i * r->part.cols + v], 0) << "padding";
      }
      EXPECT_TRUE(got.guards_intact());
    }
    EXPECT_TRUE(close_values(dlogits, want.dlogits, s_.dtype, gradient_bar(s_.dtype, want.max_logit),
                             {want.dlogits_terms, s_.by_terms}));
  }

 private:
  // The ranks' sets in one block, as an all_gather lays them out, and their merge.
  class Statistics {
   public:
    Statistics(int64_t ranks, int64_t rows)
        : ranks_(ranks), rows_(rows), sets_(DType::kF64, ranks * size()), merged_(DType::kF64, size()) {}
    double* of_rank(size_t k) { return static_cast<double*>(sets_.data()) + static_cast<int64_t>(k) * size(); }
    void merge(const Exec& exec) {
      run(exec, LossMergeStatistics{
                    .sets = of_rank(0), .merged = const_cast<double*>(merged()), .count = ranks_, .rows = rows_});
    }
    const double* merged() const { return static_cast<const double*>(merged_.data()); }
    const double* mass() const { return merged() + 4 * rows_; }
    bool guards_intact() const { return sets_.guards_intact() && merged_.guards_intact(); }

   private:
    int64_t size() const { return kLossStatistics * rows_; }
    int64_t ranks_, rows_;
    Array sets_, merged_;
  };

  LinearCrossEntropyForwardBackward call(const Exec& exec, ShardRank& r) {
    r.on_gpu = !std::holds_alternative<CpuExec>(exec);
    return {.in = {.x = x_.data(),
                   .weight = r.weight.data(),
                   .bias = c_.bias.empty() ? nullptr : r.bias.data(),
                   .targets = r.shard_targets(),
                   .rows = c_.rows,
                   .hidden = c_.hidden,
                   .vocab = r.part.cols,
                   .dtype = s_.dtype,
                   .shard_offset = r.part.offset,
                   .vocab_global = c_.vocab},
            .options = r.options(),
            .out = r.outputs(),
            .upstream = r.upstream(),
            .grad = {.dx = r.dx.data(),
                     .dweight = r.dweight.data(),
                     .dbias = r.dbias.data(),
                     .dx_in_accum_dtype = true,
                     .dweight_in_dtype = s_.dweight_in_dtype},
            .workspace = {.budget_bytes = s_.budget_bytes, .data = r.scratch.data(), .size_bytes = r.scratch.size()}};
  }
  CrossEntropyInputs logits_inputs(const ShardRank& r) const {
    return {.logits = r.logits.data(),
            .targets = r.shard_targets(),
            .rows = c_.rows,
            .vocab = r.part.cols,
            .dtype = s_.dtype,
            .shard_offset = r.part.offset,
            .vocab_global = c_.vocab};
  }
  LossChunks chunks_of(const Exec& exec, ShardRank& r) {
    return std::visit([&](const auto& device) { return chunks(device, call(exec, r), largest_); }, exec);
  }
  void losses(const Exec& exec, Statistics& statistics) {
    statistics.merge(exec);
    for (auto& r : ranks_)
      run(exec, LossFromStatistics{.statistics = statistics.merged(),
                                   .targets = r->shard_targets(),
                                   .rows = c_.rows,
                                   .vocab_global = c_.vocab,
                                   .dtype = s_.dtype,
                                   .options = r->options(),
                                   .out = r->outputs()});
    EXPECT_TRUE(statistics.guards_intact());
  }
  size_t scaled_budget(const Exec& exec) {
    size_t least = 0;
    for (auto& r : ranks_) {
      LinearCrossEntropyBegin begin{.call = call(exec, *r), .chunk = 0, .statistics = nullptr, .plan_vocab = largest_};
      least = std::max(least, least_budget(exec, begin, begin.call.workspace));
    }
    return static_cast<size_t>(s_.budget_factor * static_cast<double>(least));
  }
  template <class Args>
  void scale_budget(const Exec& exec, Args& args) {
    if (s_.budget_factor == 0) return;
    const size_t least = least_budget(exec, args, args.workspace);
    args.workspace.budget_bytes = static_cast<size_t>(s_.budget_factor * static_cast<double>(least));
  }
  template <class Args>
  void with_scratch(const Exec& exec, ShardRank& r, Args& args) {
    r.scratch.assign(workspace_bytes(exec, args), -1);
    if constexpr (requires { args.workspace.data; }) {
      args.workspace.data = r.scratch.data();
      args.workspace.size_bytes = r.scratch.size();
    } else {
      args.workspace = r.scratch.data();
      args.workspace_size_bytes = r.scratch.size();
    }
    run(exec, args);
  }

  const LogitsCase l_;
  const LossCase& c_;
  LossSetup s_;
  Array x_ = rows_array();
  std::vector<std::unique_ptr<ShardRank>> ranks_;
  int64_t largest_ = 0;

  Array rows_array() const {
    Array x(s_.dtype, c_.rows * c_.hidden);
    for (int64_t i = 0; i < x.size(); ++i) x.set(i, c_.x[i]);
    return x;
  }
};

}  // namespace xce::test

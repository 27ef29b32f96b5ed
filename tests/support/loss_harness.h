// Runs a LossCase through linear cross-entropy on any exec: outputs poisoned, workspace guarded. Error bars:
// loss_expect.h.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "kernels/linear_cross_entropy/linear_cross_entropy.h"
#include "tests/support/execs.h"
#include "tests/support/loss_call.h"
#include "tests/support/loss_expect.h"

namespace xce::test {

// The least budget of args, whose workspace is given apart: it is in what the call says of less.
template <class Args>
size_t least_budget(const Exec& exec, const Args& args, LossWorkspace& workspace) {
  const size_t asked = std::exchange(workspace.budget_bytes, 1);
  size_t least = 0;
  try {
    workspace_bytes(exec, args);
  } catch (const Error& error) {
    const std::string text = error.what();
    least = std::stoull(text.substr(text.find("at least ") + 9));
  }
  workspace.budget_bytes = asked;
  return least;
}

// A case's arrays, gradients and calls.
class LossRun : public LossCall {
 public:
  LossRun(const LossCase& c, const LossSetup& s)
      : LossCall(c, s),
        x_(rows_of(s.dtype, c.x, c.hidden, s.pad_x, s.skip)),
        weight_(rows_of(s.dtype, c.weight, c.hidden, s.pad_weight, s.skip)),
        bias_(array_of(s.dtype, c.bias, s.skip)),
        dx(s.dx_in_accum_dtype ? accum_ : s.dtype, c.rows * (c.hidden + s.pad_dx), s.skip),
        dweight(s.dweight_in_dtype ? s.dtype : accum_, c.vocab * (c.hidden + s.pad_dweight), s.skip),
        dbias(dweight.dtype(), c.vocab, s.skip) {
    if (s.accumulate) {
      for (auto [a, pad] : {std::pair{&dx, s.pad_dx}, {&dweight, s.pad_dweight}, {&dbias, int64_t{0}}})
        for (int64_t i = 0; i < a->size(); ++i)
          if (pad == 0 || i % (c.hidden + pad) < c.hidden) a->set(i, 0.5);
    }
  }

  LinearCrossEntropyInputs inputs() const {
    return {.x = x_.data(),
            .weight = weight_.data(),
            .bias = c_.bias.empty() ? nullptr : bias_.data(),
            .targets = targets(),
            .rows = c_.rows,
            .hidden = c_.hidden,
            .vocab = c_.vocab,
            .dtype = s_.dtype,
            .ldx = s_.pad_x ? c_.hidden + s_.pad_x : 0,
            .ldw = s_.pad_weight ? c_.hidden + s_.pad_weight : 0};
  }
  LinearCrossEntropyGradients gradients() {
    return {.dx = s_.with_dx ? dx.data() : nullptr,
            .dweight = s_.with_dweight ? dweight.data() : nullptr,
            .dbias = s_.with_dbias ? dbias.data() : nullptr,
            .accumulate_dx = s_.accumulate,
            .accumulate_dweight = s_.accumulate,
            .dx_in_accum_dtype = s_.dx_in_accum_dtype,
            .dweight_in_dtype = s_.dweight_in_dtype,
            .ld_dx = s_.pad_dx ? c_.hidden + s_.pad_dx : 0,
            .ld_dweight = s_.pad_dweight ? c_.hidden + s_.pad_dweight : 0};
  }

  template <class Args>
  void launch_with_workspace(const Exec& exec, Args& args, LossWorkspace& workspace) {
    on_gpu = !std::holds_alternative<CpuExec>(exec);
    workspace.budget_bytes = s_.budget_bytes;
    if (s_.budget_factor != 0)
      workspace.budget_bytes =
          static_cast<size_t>(s_.budget_factor * static_cast<double>(least_budget(exec, args, workspace)));
    const size_t bytes = workspace_bytes(exec, args);
    ASSERT_LE(bytes, workspace.budget_bytes);
    Array scratch(DType::kBf16, static_cast<int64_t>(bytes / 2));  // NaN throughout, guarded
    workspace.data = scratch.data();
    workspace.size_bytes = bytes;
    run(exec, args);
    EXPECT_TRUE(scratch.guards_intact());
  }
  void forward(const Exec& exec) {
    LinearCrossEntropyForward args{.in = inputs(), .options = options(), .out = outputs(), .workspace = {}};
    launch_with_workspace(exec, args, args.workspace);
  }
  void backward(const Exec& exec) {
    LinearCrossEntropyBackward args{.in = inputs(),
                                    .options = options(),
                                    .offset = offset.data(),
                                    .logsum = logsum.data(),
                                    .upstream = upstream(),
                                    .grad = gradients(),
                                    .workspace = {}};
    launch_with_workspace(exec, args, args.workspace);
  }
  void forward_backward(const Exec& exec) {
    LinearCrossEntropyForwardBackward args{.in = inputs(),
                                           .options = options(),
                                           .out = outputs(),
                                           .upstream = upstream(),
                                           .grad = gradients(),
                                           .workspace = {}};
    launch_with_workspace(exec, args, args.workspace);
  }

  ::testing::AssertionResult inputs_equal(const LossRun& fresh) const {
    for (auto [name, mine, other] :
         {std::tuple{"x", &x_, &fresh.x_}, {"weight", &weight_, &fresh.weight_}, {"bias", &bias_, &fresh.bias_}})
      if (!mine->same_bits(*other)) return ::testing::AssertionFailure() << name << " was written";
    return LossCall::inputs_equal(fresh);
  }

 private:
  Array x_, weight_, bias_;

 public:
  Array dx, dweight, dbias;
};
// forward_backward of the run's arrays, a workspace still to come.
inline LinearCrossEntropyForwardBackward call_of(LossRun& run, size_t budget) {
  return {.in = run.inputs(),
          .options = run.options(),
          .out = run.outputs(),
          .upstream = run.upstream(),
          .grad = run.gradients(),
          .workspace = {.budget_bytes = budget}};
}

inline void expect_gradients(const LossRun& got, const LossAnswer& want) {
  const LossSetup& s = got.setup();
  const double bar = gradient_bar(s.dtype, want.max_logit), start = s.accumulate ? 0.5 : 0;
  const double weight_bar = weight_gradient_bar(s.dtype, got.on_gpu, want.max_logit);
  const double dweight_bar = s.dweight_in_dtype ? std::max(bar, weight_bar) : weight_bar;
  auto terms = [&](double size) { return Terms{size, s.by_terms}; };
  if (s.with_dx) {
    EXPECT_TRUE(close_rows(got.dx, plus(want.dx, start), {got.hidden(), s.pad_dx},
                           s.dx_in_accum_dtype ? weight_bar : bar, terms(want.dx_terms)))
        << "dx";
  }
  if (s.with_dweight) {
    EXPECT_TRUE(close_rows(got.dweight, plus(want.dweight, start), {got.hidden(), s.pad_dweight}, dweight_bar,
                           terms(want.dweight_terms)))
        << "dweight";
  }
  if (s.with_dbias) {
    EXPECT_TRUE(close_rows(got.dbias, plus(want.dbias, start), {got.vocab(), 0}, dweight_bar, terms(want.dbias_terms)))
        << "dbias";
  }
  for (auto [asked, a] : {std::pair{s.with_dx, &got.dx}, {s.with_dweight, &got.dweight}, {s.with_dbias, &got.dbias}}) {
    if (!asked && !s.accumulate && a->size() > 0) {
      EXPECT_TRUE(std::isnan((*a)[0])) << "a gradient that nobody asked for";
    }
  }
}

}  // namespace xce::test

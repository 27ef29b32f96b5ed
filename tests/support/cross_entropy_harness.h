// Runs a LossCase through cross-entropy over given logits: outputs poisoned, workspace guarded. A case's x and weight
// are not used; error bars: loss_expect.h.
#pragma once

#include <gtest/gtest.h>

#include <vector>

#include "kernels/cross_entropy/cross_entropy.h"
#include "tests/support/execs.h"
#include "tests/support/loss_call.h"
#include "tests/support/loss_expect.h"

namespace xce::test {

// Targets and options of random_case with logits, before scale and softcap, of a spread.
struct LogitsCase {
  LossCase c;
  std::vector<double> y;
  static LogitsCase random(DType dtype, int64_t rows, int64_t vocab, uint64_t seed, double spread = 2) {
    return {random_case(dtype, rows, 1, vocab, seed), Array::normal(dtype, rows * vocab, seed + 7, spread).values()};
  }
  LossAnswer answer() const { return reference_cross_entropy(c, y); }
};

class CrossEntropyRun : public LossCall {
 public:
  CrossEntropyRun(const LogitsCase& l, const LossSetup& s)
      : LossCall(l.c, s),
        logits(rows_of(s.dtype, l.y, l.c.vocab, s.pad_x, s.skip)),
        dlogits(s.dtype, l.c.rows * (l.c.vocab + s.pad_dx), s.skip) {}

  CrossEntropyInputs inputs() const {
    return {.logits = logits.data(),
            .targets = targets(),
            .rows = rows(),
            .vocab = vocab(),
            .dtype = s_.dtype,
            .ld = s_.pad_x ? vocab() + s_.pad_x : 0};
  }
  CrossEntropyForward forward_call() { return {.in = inputs(), .options = options(), .out = outputs()}; }
  CrossEntropyBackward backward_call() {
    return {.in = inputs(),
            .options = options(),
            .offset = offset.data(),
            .logsum = logsum.data(),
            .upstream = upstream(),
            .dlogits = gradient().data(),
            .ld_dlogits = gradient_ld()};
  }
  CrossEntropyForwardBackward both_call() {
    return {.in = inputs(),
            .options = options(),
            .out = outputs(),
            .upstream = upstream(),
            .dlogits = gradient().data(),
            .ld_dlogits = gradient_ld()};
  }
  template <class Args>
  void launch_with_workspace(const Exec& exec, Args args) {
    on_gpu = !std::holds_alternative<CpuExec>(exec);
    args.workspace_size_bytes = workspace_bytes(exec, args);
    Array scratch(DType::kBf16, static_cast<int64_t>(args.workspace_size_bytes / 2));  // NaN throughout, guarded
    args.workspace = scratch.data();
    run(exec, args);
    EXPECT_TRUE(scratch.guards_intact());
  }
  void forward(const Exec& exec) { launch_with_workspace(exec, forward_call()); }
  void backward(const Exec& exec) { launch_with_workspace(exec, backward_call()); }
  void forward_backward(const Exec& exec) { launch_with_workspace(exec, both_call()); }

  Array& gradient() { return s_.in_place ? logits : dlogits; }
  const Array& gradient() const { return s_.in_place ? logits : dlogits; }
  double dlogit(int64_t i, int64_t v) const { return gradient()[i * (vocab() + gradient_pad()) + v]; }
  int64_t gradient_pad() const { return s_.in_place ? s_.pad_x : s_.pad_dx; }
  ::testing::AssertionResult inputs_equal(const CrossEntropyRun& fresh) const {
    if (!s_.in_place && !logits.same_bits(fresh.logits)) return ::testing::AssertionFailure() << "logits were written";
    return LossCall::inputs_equal(fresh);
  }

 private:
  int64_t gradient_ld() const { return gradient_pad() ? vocab() + gradient_pad() : 0; }

 public:
  Array logits, dlogits;
};

inline void expect_gradients(const CrossEntropyRun& got, const LossAnswer& want) {
  const LossSetup& s = got.setup();
  EXPECT_TRUE(close_rows(got.gradient(), want.dlogits, {got.vocab(), got.gradient_pad()},
                         gradient_bar(s.dtype, want.max_logit), {want.dlogits_terms, s.by_terms}))
      << "dlogits";
}

}  // namespace xce::test

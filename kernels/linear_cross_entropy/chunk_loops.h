// The fused loss's checks, and its operations as loops over chunks of rows: the same on every device. What a device
// gives: Exec, Plan, Chunk<T> with the work of one chunk, plan() and workspace_bytes().
//   plan(exec, call, vocab, work, extras)  how the call is cut; it knows all options, outputs and gradients
//   Chunk<T>(exec, call, plan, extras)     then count() before chunk 0; select(chunk), load_rows() for each; then
//   statistics(StatisticsView), losses(StatisticsView), gradients_after_statistics()   loss and gradients, or
//   losses_and_gradients()                 the same at once, false where the device does not; or
//   use_residual(offset, logsum), gradients()   of a backward; with probabilities their sums are found first
#pragma once

#include <algorithm>

#include "kernels/cross_entropy/loss_rows.h"
#include "kernels/linear_cross_entropy/linear_cross_entropy.h"

namespace xce::loss {

enum class Work { kForward, kBackward, kBoth };

template <class Device>
class ChunkLoops {
 public:
  using Exec = typename Device::Exec;
  using Plan = typename Device::Plan;
  using Call = LinearCrossEntropyForwardBackward;

  static Plan plan_of(const Exec& exec, const LinearCrossEntropyForward& args) {
    return plan_of(exec, call_of(args), Work::kForward, extras_of(args));
  }
  static Plan plan_of(const Exec& exec, const LinearCrossEntropyBackward& args) {
    const Call call = call_of(args);
    return plan_of(exec, call, Work::kBackward, extras_of(call));
  }
  static Plan plan_of(const Exec& exec, const Call& args, int64_t plan_vocab = 0) {
    return plan_of(exec, args, Work::kBoth, extras_of(args), plan_vocab);
  }
  static Plan plan_of(const Exec& exec, const LinearCrossEntropyBegin& args) {
    return plan_of(exec, args.call, args.plan_vocab);
  }
  static Plan plan_of(const Exec& exec, const LinearCrossEntropyFinish& args) {
    return plan_of(exec, args.call, args.plan_vocab);
  }
  template <class Args>
  static size_t bytes(const Exec& exec, const Args& args) {
    return Device::workspace_bytes(plan_of(exec, args));
  }

  static void run(const Exec& exec, const LinearCrossEntropyForward& args) {
    const Call call = call_of(args);
    const Plan plan = plan_of(exec, args);
    check(call, plan);
    if (any(args.out)) check_whole_vocab(args.in);
    each_chunk(exec, call, plan, extras_of(args), [&](auto& chunk) {
      const StatisticsView set =
          args.statistics ? StatisticsView{args.statistics, args.in.rows, chunk.first_row()} : chunk.own_statistics();
      chunk.statistics(set);
      chunk.losses(set);
    });
  }

  static void run(const Exec& exec, const LinearCrossEntropyBackward& args) {
    const Call call = call_of(args);
    const Plan plan = plan_of(exec, args);
    check(call, plan);
    check_backward(args.in.targets, is_whole_vocab(args.in), args.offset, args.logsum, args.in.rows);
    each_chunk(exec, call, plan, extras_of(call), [&](auto& chunk) {
      chunk.use_residual(args.offset, args.logsum);
      chunk.gradients();
    });
  }

  static void run(const Exec& exec, const Call& args) {
    const Plan plan = plan_of(exec, args);
    check(args, plan);
    check_whole_vocab(args.in);
    each_chunk(exec, args, plan, extras_of(args), [&](auto& chunk) {
      if (chunk.losses_and_gradients()) return;
      chunk.statistics(chunk.own_statistics());
      chunk.losses(chunk.own_statistics());
      chunk.gradients_after_statistics();
    });
  }

  static void run(const Exec& exec, const LinearCrossEntropyBegin& args) {
    one_chunk(exec, args, [&](auto& chunk) {
      if (args.chunk == 0) chunk.count();
      chunk.load_rows();
      chunk.statistics({args.statistics, chunk.rows(), 0});
    });
  }

  static void run(const Exec& exec, const LinearCrossEntropyFinish& args) {
    one_chunk(exec, args, [&](auto& chunk) {
      chunk.losses({const_cast<double*>(args.statistics), chunk.rows(), 0});  // which only reads them
      chunk.gradients_after_statistics();
    });
  }

 private:
  template <class T>
  using Chunk = typename Device::template Chunk<T>;

  static Call call_of(const LinearCrossEntropyForward& args) {
    return {.in = args.in,
            .options = args.options,
            .out = args.out,
            .upstream = {},
            .grad = {},
            .workspace = args.workspace};
  }
  static Call call_of(const LinearCrossEntropyBackward& args) {
    return {.in = args.in,
            .options = args.options,
            .out = {},
            .upstream = args.upstream,
            .grad = args.grad,
            .workspace = args.workspace};
  }
  static Extras extras_of(const Call& call) { return loss::extras_of(call.in.targets, call.options, call.out); }
  // Whoever merges a forward's statistics may ask for everything.
  static Extras extras_of(const LinearCrossEntropyForward& args) {
    Extras extras = extras_of(call_of(args));
    if (args.statistics) extras.entropy = extras.argmax = true;
    return extras;
  }

  static Plan plan_of(const Exec& exec, const Call& call, Work work, Extras extras, int64_t plan_vocab = 0) {
    const LinearCrossEntropyInputs& in = call.in;
    XCE_CHECK(in.rows >= 0, "linear cross-entropy rows >= 0", in.rows);
    XCE_CHECK(in.hidden >= 1, "linear cross-entropy hidden >= 1", in.hidden);
    XCE_CHECK(in.vocab >= 1, "linear cross-entropy vocab >= 1", in.vocab);
    XCE_CHECK(plan_vocab == 0 || plan_vocab >= in.vocab, "plan_vocab 0 or >= vocab", plan_vocab);
    return Device::plan(exec, call, plan_vocab ? plan_vocab : in.vocab, work, extras);
  }

  static void check(const Call& call, const Plan& plan) {
    const LinearCrossEntropyInputs& in = call.in;
    const size_t needed = Device::workspace_bytes(plan);
    loss::check(in.targets, call.options, call.out, in.rows, in.vocab);
    XCE_CHECK(in.ldx == 0 || in.ldx >= in.hidden, "ldx 0 or >= hidden", in.ldx);
    XCE_CHECK(in.ldw == 0 || in.ldw >= in.hidden, "ldw 0 or >= hidden", in.ldw);
    XCE_CHECK(in.shard_offset >= 0, "shard_offset >= 0", in.shard_offset);
    const LinearCrossEntropyGradients& grad = call.grad;
    XCE_CHECK(grad.ld_dx == 0 || grad.ld_dx >= in.hidden, "ld_dx 0 or >= hidden", grad.ld_dx);
    XCE_CHECK(grad.ld_dweight == 0 || grad.ld_dweight >= in.hidden, "ld_dweight 0 or >= hidden", grad.ld_dweight);
    XCE_CHECK(!grad.dweight_in_dtype || !grad.accumulate_dweight, "dweight_in_dtype without accumulate_dweight",
              "both");
    XCE_CHECK(in.rows == 0 || in.x, "x", "null");
    XCE_CHECK(in.weight, "weight", "null");
    XCE_CHECK(call.workspace.data, "a workspace", "null");
    XCE_CHECK(reinterpret_cast<uintptr_t>(call.workspace.data) % Device::kWorkspaceAlignment == 0,
              str("a workspace aligned to ", Device::kWorkspaceAlignment, " bytes"), call.workspace.data);
    XCE_CHECK(call.workspace.size_bytes >= needed, str("a workspace of ", needed, " bytes"), call.workspace.size_bytes);
  }

  static bool is_whole_vocab(const LinearCrossEntropyInputs& in) {
    return in.shard_offset == 0 && in.vocab_global <= in.vocab;
  }
  // Losses of a call that sees one shard alone would be wrong in silence.
  static void check_whole_vocab(const LinearCrossEntropyInputs& in) {
    XCE_CHECK(is_whole_vocab(in), "the whole vocabulary, or a shard's Begin, Finish and statistics",
              str("a shard of ", in.vocab_global, " labels"));
  }

  template <class F>
  static void each_chunk(const Exec& exec, const Call& call, const Plan& plan, Extras extras, F&& f) {
    visit_loss_dtype(call.in.dtype, [&]<class T>(std::type_identity<T>) {
      Chunk<T> chunk(exec, call, plan, extras);
      chunk.count();
      for (int64_t c = 0; c < plan.chunks; ++c) {
        chunk.select(c);
        chunk.load_rows();
        f(chunk);
      }
    });
  }
  template <class Args, class F>
  static void one_chunk(const Exec& exec, const Args& args, F&& f) {
    const Plan plan = plan_of(exec, args);
    check(args.call, plan);
    XCE_CHECK(args.chunk >= 0 && args.chunk < plan.chunks, str("a chunk below ", plan.chunks), args.chunk);
    XCE_CHECK(args.statistics, "statistics", "null");
    visit_loss_dtype(args.call.in.dtype, [&]<class T>(std::type_identity<T>) {
      Chunk<T> chunk(exec, args.call, plan, extras_of(args.call));
      chunk.select(args.chunk);
      f(chunk);
    });
  }
};

}  // namespace xce::loss

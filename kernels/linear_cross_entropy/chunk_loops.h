// The fused loss's checks, and its operations as loops over chunks of rows: the same on every device. What a device
// gives: Exec, Plan, Chunk<T> with the work of one chunk, plan() and workspace_bytes().
#pragma once

#include <algorithm>

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
    return plan_of(exec, args.in, args.workspace, Work::kForward);
  }
  static Plan plan_of(const Exec& exec, const LinearCrossEntropyBackward& args) {
    return plan_of(exec, args.in, args.workspace, Work::kBackward);
  }
  static Plan plan_of(const Exec& exec, const Call& args, int64_t plan_vocab = 0) {
    return plan_of(exec, args.in, args.workspace, Work::kBoth, plan_vocab);
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
    const Call call{.in = args.in,
                    .options = args.options,
                    .out = args.out,
                    .upstream = {},
                    .grad = {},
                    .workspace = args.workspace};
    const Plan plan = plan_of(exec, args);
    check(call, plan);
    if (any(args.out)) check_whole_vocab(args.in);
    each_chunk(exec, call, plan, [&]<class T>(Chunk<T>& chunk) {
      auto set = chunk.own_statistics();
      if (args.statistics) set = set_at<T>(static_cast<Accum<T>*>(args.statistics), args.in.rows, chunk.first_row());
      chunk.statistics(set);
      chunk.losses(as_const<T>(set));
    });
  }

  static void run(const Exec& exec, const LinearCrossEntropyBackward& args) {
    const Call call{.in = args.in,
                    .options = args.options,
                    .out = {},
                    .upstream = args.upstream,
                    .grad = args.grad,
                    .workspace = args.workspace};
    const Plan plan = plan_of(exec, args);
    check(call, plan);
    XCE_CHECK(args.in.rows == 0 || (args.offset && args.logsum), "the forward's residual", "null");
    each_chunk(exec, call, plan, [&]<class T>(Chunk<T>& chunk) {
      chunk.use_residual(static_cast<const Accum<T>*>(args.offset), static_cast<const Accum<T>*>(args.logsum));
      chunk.gradients();
    });
  }

  static void run(const Exec& exec, const Call& args) {
    const Plan plan = plan_of(exec, args);
    check(args, plan);
    check_whole_vocab(args.in);
    each_chunk(exec, args, plan, [&]<class T>(Chunk<T>& chunk) {
      if (chunk.losses_and_gradients()) return;
      chunk.statistics(chunk.own_statistics());
      chunk.losses(as_const<T>(chunk.own_statistics()));
      chunk.gradients_after_statistics();
    });
  }

  static void run(const Exec& exec, const LinearCrossEntropyBegin& args) {
    one_chunk(exec, args, [&]<class T>(Chunk<T>& chunk) {
      if (args.chunk == 0) chunk.count();
      chunk.load_rows();
      chunk.statistics(set_at<T>(static_cast<Accum<T>*>(args.statistics), chunk.rows(), 0));
    });
  }

  static void run(const Exec& exec, const LinearCrossEntropyFinish& args) {
    one_chunk(exec, args, [&]<class T>(Chunk<T>& chunk) {
      // Merged statistics are only read.
      auto* set = const_cast<Accum<T>*>(static_cast<const Accum<T>*>(args.statistics));
      chunk.losses(as_const<T>(set_at<T>(set, chunk.rows(), 0)));
      chunk.gradients_after_statistics();
    });
  }

 private:
  template <class T>
  using Chunk = typename Device::template Chunk<T>;

  static Plan plan_of(const Exec& exec, const LinearCrossEntropyInputs& in, const LossWorkspace& workspace, Work work,
                      int64_t plan_vocab = 0) {
    XCE_CHECK(in.rows >= 0, "linear cross-entropy rows >= 0", in.rows);
    XCE_CHECK(in.hidden >= 1, "linear cross-entropy hidden >= 1", in.hidden);
    XCE_CHECK(in.vocab >= 1, "linear cross-entropy vocab >= 1", in.vocab);
    XCE_CHECK(plan_vocab == 0 || plan_vocab >= in.vocab, "plan_vocab 0 or >= vocab", plan_vocab);
    return Device::plan(exec, in, plan_vocab ? plan_vocab : in.vocab, work, workspace.budget_bytes);
  }

  static void check(const Call& call, const Plan& plan) {
    const LinearCrossEntropyInputs& in = call.in;
    const size_t needed = Device::workspace_bytes(plan);
    loss::check(call.options);
    XCE_CHECK(in.ldx == 0 || in.ldx >= in.hidden, "ldx 0 or >= hidden", in.ldx);
    XCE_CHECK(in.ldw == 0 || in.ldw >= in.hidden, "ldw 0 or >= hidden", in.ldw);
    XCE_CHECK(in.shard_offset >= 0, "shard_offset >= 0", in.shard_offset);
    XCE_CHECK(in.rows == 0 || (in.x && in.targets.index), "x and targets", "null");
    XCE_CHECK(in.weight, "weight", "null");
    XCE_CHECK(call.workspace.data, "a workspace", "null");
    XCE_CHECK(reinterpret_cast<uintptr_t>(call.workspace.data) % Device::kWorkspaceAlignment == 0,
              str("a workspace aligned to ", Device::kWorkspaceAlignment, " bytes"), call.workspace.data);
    XCE_CHECK(call.workspace.size_bytes >= needed, str("a workspace of ", needed, " bytes"), call.workspace.size_bytes);
  }

  // Losses of a call that sees one shard alone would be wrong in silence.
  static void check_whole_vocab(const LinearCrossEntropyInputs& in) {
    XCE_CHECK(in.shard_offset == 0 && in.vocab_global <= in.vocab,
              "the whole vocabulary, or a shard's Begin, Finish and statistics",
              str("a shard of ", in.vocab_global, " labels"));
  }

  // Rows `first` and on of (3, stride) statistics.
  template <class T>
  static auto set_at(Accum<T>* set, int64_t stride, int64_t first) {
    return typename Chunk<T>::Set{set + first, set + stride + first, set + 2 * stride + first};
  }
  template <class T>
  static auto as_const(const typename Chunk<T>::Set& set) {
    return typename Chunk<T>::ConstSet{set.max, set.sum, set.target};
  }

  template <class F>
  static void each_chunk(const Exec& exec, const Call& call, const Plan& plan, F&& f) {
    visit_dtype(call.in.dtype, [&]<class T>(std::type_identity<T>) {
      Chunk<T> chunk(exec, call, plan);
      chunk.count();
      for (int64_t c = 0; c < plan.chunks; ++c) {
        chunk.select(c);
        chunk.load_rows();
        f.template operator()<T>(chunk);
      }
    });
  }
  template <class Args, class F>
  static void one_chunk(const Exec& exec, const Args& args, F&& f) {
    const Plan plan = plan_of(exec, args);
    check(args.call, plan);
    XCE_CHECK(args.chunk >= 0 && args.chunk < plan.chunks, str("a chunk below ", plan.chunks), args.chunk);
    XCE_CHECK(args.statistics, "statistics", "null");
    visit_dtype(args.call.in.dtype, [&]<class T>(std::type_identity<T>) {
      Chunk<T> chunk(exec, args.call, plan);
      chunk.select(args.chunk);
      f.template operator()<T>(chunk);
    });
  }
};

}  // namespace xce::loss

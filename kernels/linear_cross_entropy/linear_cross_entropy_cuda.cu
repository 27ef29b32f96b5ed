// The fused loss on a GPU: checks, the plan of each op, and their loops over chunks. The work is in chunk_cuda.cuh.
#include "kernels/linear_cross_entropy/linear_cross_entropy.h"

#include "kernels/linear_cross_entropy/chunk_cuda.cuh"

namespace xce {
namespace {

using Call = LinearCrossEntropyForwardBackward;

enum class Work { kForward, kBackward, kBoth };

CudaLossPlan plan_of(const LinearCrossEntropyInputs& in, const LossWorkspace& workspace, Work work,
                     int64_t plan_vocab = 0) {
  XCE_CHECK(in.rows >= 0, "linear cross-entropy rows >= 0", in.rows);
  XCE_CHECK(in.hidden >= 1, "linear cross-entropy hidden >= 1", in.hidden);
  XCE_CHECK(in.vocab >= 1, "linear cross-entropy vocab >= 1", in.vocab);
  XCE_CHECK(plan_vocab == 0 || plan_vocab >= in.vocab, "plan_vocab 0 or >= vocab", plan_vocab);
  CudaLossShape shape{.rows = in.rows,
                      .hidden = in.hidden,
                      .vocab = plan_vocab ? plan_vocab : in.vocab,
                      .bytes = static_cast<int64_t>(size_of(in.dtype)),
                      .accum_bytes = static_cast<int64_t>(size_of(accum_dtype(in.dtype))),
                      .may_keep = work == Work::kBoth,
                      .gradients = work != Work::kForward};
  return plan_loss(shape, workspace.budget_bytes);
}

void check(const Call& call, const CudaLossPlan& plan) {
  const LinearCrossEntropyInputs& in = call.in;
  loss::check(call.options);
  XCE_CHECK(in.ldx == 0 || in.ldx >= in.hidden, "ldx 0 or >= hidden", in.ldx);
  XCE_CHECK(in.ldw == 0 || in.ldw >= in.hidden, "ldw 0 or >= hidden", in.ldw);
  XCE_CHECK(in.shard_offset >= 0, "shard_offset >= 0", in.shard_offset);
  XCE_CHECK(in.rows == 0 || (in.x && in.targets.index), "x and targets", "null");
  XCE_CHECK(in.weight, "weight", "null");
  XCE_CHECK(call.workspace.data, "a workspace", "null");
  XCE_CHECK(cuda::aligned16(call.workspace.data), "a workspace aligned to 16 bytes", call.workspace.data);
  XCE_CHECK(call.workspace.size_bytes >= plan.total, str("a workspace of ", plan.total, " bytes"),
            call.workspace.size_bytes);
}

// Losses of a call that sees one shard alone would be wrong in silence.
void check_whole_vocab(const LinearCrossEntropyInputs& in) {
  XCE_CHECK(in.shard_offset == 0 && in.vocab_global <= in.vocab,
            "the whole vocabulary, or a shard's Begin, Finish and statistics",
            str("a shard of ", in.vocab_global, " labels"));
}

template <class A>
loss::DeviceSet<A> set_at(A* set, int64_t stride, int64_t first) {
  return {set + first, set + stride + first, set + 2 * stride + first};
}
template <class A>
loss::DeviceSet<const A> as_const(loss::DeviceSet<A> set) {
  return {set.max, set.sum, set.target};
}

template <class T>
void forward(const CudaExec& exec, const LinearCrossEntropyForward& args, const Call& call, const CudaLossPlan& plan) {
  using A = Accum<T>;
  loss::CudaChunk<T> chunk(exec, call, plan);
  chunk.count();
  for (int64_t c = 0; c < plan.chunks; ++c) {
    chunk.select(c);
    chunk.copy_inputs();
    auto set = chunk.own_statistics();
    if (args.statistics) set = set_at(static_cast<A*>(args.statistics), args.in.rows, chunk.first_row());
    chunk.statistics(set);
    chunk.losses(as_const(set));
  }
}

template <class T>
void backward(const CudaExec& exec, const LinearCrossEntropyBackward& args, const Call& call,
              const CudaLossPlan& plan) {
  using A = Accum<T>;
  loss::CudaChunk<T> chunk(exec, call, plan);
  chunk.count();
  for (int64_t c = 0; c < plan.chunks; ++c) {
    chunk.select(c);
    chunk.copy_inputs();
    chunk.use_residual(static_cast<const A*>(args.offset), static_cast<const A*>(args.logsum));
    chunk.gradients(false);
  }
}

template <class T>
void forward_backward(const CudaExec& exec, const Call& call, const CudaLossPlan& plan) {
  loss::CudaChunk<T> chunk(exec, call, plan);
  chunk.count();
  for (int64_t c = 0; c < plan.chunks; ++c) {
    chunk.select(c);
    chunk.copy_inputs();
    if (plan.tiles == 1) {
      chunk.losses_and_gradients();
      continue;
    }
    chunk.statistics(chunk.own_statistics());
    chunk.losses(as_const(chunk.own_statistics()));
    chunk.gradients(false);
  }
}

void check_chunk(int64_t chunk, const CudaLossPlan& plan, const void* statistics) {
  XCE_CHECK(chunk >= 0 && chunk < plan.chunks, str("a chunk below ", plan.chunks), chunk);
  XCE_CHECK(statistics, "statistics", "null");
}

}  // namespace

LossChunks chunks(const CudaExec&, const Call& args, int64_t plan_vocab) {
  CudaLossPlan plan = plan_of(args.in, args.workspace, Work::kBoth, plan_vocab);
  return {plan.chunks, plan.chunk_rows};
}

void launch(const CudaExec& exec, const LinearCrossEntropyForward& args) {
  Call call{
      .in = args.in, .options = args.options, .out = args.out, .upstream = {}, .grad = {}, .workspace = args.workspace};
  CudaLossPlan plan = plan_of(args.in, args.workspace, Work::kForward);
  check(call, plan);
  if (loss::any(args.out)) check_whole_vocab(args.in);
  visit_dtype(args.in.dtype, [&]<class T>(std::type_identity<T>) { forward<T>(exec, args, call, plan); });
}

void launch(const CudaExec& exec, const LinearCrossEntropyBackward& args) {
  Call call{.in = args.in,
            .options = args.options,
            .out = {},
            .upstream = args.upstream,
            .grad = args.grad,
            .workspace = args.workspace};
  CudaLossPlan plan = plan_of(args.in, args.workspace, Work::kBackward);
  check(call, plan);
  XCE_CHECK(args.in.rows == 0 || (args.offset && args.logsum), "the forward's residual", "null");
  visit_dtype(args.in.dtype, [&]<class T>(std::type_identity<T>) { backward<T>(exec, args, call, plan); });
}

void launch(const CudaExec& exec, const LinearCrossEntropyForwardBackward& args) {
  CudaLossPlan plan = plan_of(args.in, args.workspace, Work::kBoth);
  check(args, plan);
  check_whole_vocab(args.in);
  visit_dtype(args.in.dtype, [&]<class T>(std::type_identity<T>) { forward_backward<T>(exec, args, plan); });
}

void launch(const CudaExec& exec, const LinearCrossEntropyBegin& args) {
  CudaLossPlan plan = plan_of(args.call.in, args.call.workspace, Work::kBoth, args.plan_vocab);
  check(args.call, plan);
  check_chunk(args.chunk, plan, args.statistics);
  visit_dtype(args.call.in.dtype, [&]<class T>(std::type_identity<T>) {
    loss::CudaChunk<T> chunk(exec, args.call, plan);
    if (args.chunk == 0) chunk.count();
    chunk.select(args.chunk);
    chunk.copy_inputs();
    chunk.statistics(set_at(static_cast<Accum<T>*>(args.statistics), chunk.rows(), 0));
  });
}

void launch(const CudaExec& exec, const LinearCrossEntropyFinish& args) {
  CudaLossPlan plan = plan_of(args.call.in, args.call.workspace, Work::kBoth, args.plan_vocab);
  check(args.call, plan);
  check_chunk(args.chunk, plan, args.statistics);
  visit_dtype(args.call.in.dtype, [&]<class T>(std::type_identity<T>) {
    loss::CudaChunk<T> chunk(exec, args.call, plan);
    chunk.select(args.chunk);
    chunk.losses(set_at(static_cast<const Accum<T>*>(args.statistics), chunk.rows(), 0));
    chunk.gradients(plan.tiles == 1);
  });
}

size_t workspace_bytes(const CudaExec&, const LinearCrossEntropyForward& args) {
  return plan_of(args.in, args.workspace, Work::kForward).total;
}
size_t workspace_bytes(const CudaExec&, const LinearCrossEntropyBackward& args) {
  return plan_of(args.in, args.workspace, Work::kBackward).total;
}
size_t workspace_bytes(const CudaExec&, const LinearCrossEntropyForwardBackward& args) {
  return plan_of(args.in, args.workspace, Work::kBoth).total;
}
size_t workspace_bytes(const CudaExec&, const LinearCrossEntropyBegin& args) {
  return plan_of(args.call.in, args.call.workspace, Work::kBoth, args.plan_vocab).total;
}
size_t workspace_bytes(const CudaExec&, const LinearCrossEntropyFinish& args) {
  return plan_of(args.call.in, args.call.workspace, Work::kBoth, args.plan_vocab).total;
}

}  // namespace xce

// The fused loss on the CPU. The loops are in chunk_loops.h, the work is in chunk_cpu.h.
#include "kernels/linear_cross_entropy/linear_cross_entropy.h"

#include "kernels/linear_cross_entropy/chunk_cpu.h"
#include "kernels/linear_cross_entropy/chunk_loops.h"

namespace xce {
namespace {

// Of dtypes that are their own accum_dtype nothing is rounded.
bool rounds_dweight(const LinearCrossEntropyGradients& grad, DType dtype) {
  return grad.dweight_in_dtype && (grad.dweight || grad.dbias) && dtype != accum_dtype(dtype);
}

struct Cpu {
  using Exec = CpuExec;
  using Plan = LossPlan;
  template <class T>
  using Chunk = loss::Chunk<T>;
  static constexpr size_t kWorkspaceAlignment = 1;

  static Plan plan(const CpuExec& exec, const LinearCrossEntropyForwardBackward& call, int64_t vocab, loss::Work work,
                   loss::Extras extras) {
    const DType dtype = call.in.dtype, accum = accum_dtype(dtype);
    return plan_loss(LossShape{.rows = call.in.rows,
                               .hidden = call.in.hidden,
                               .vocab = vocab,
                               .accum_bytes = static_cast<int64_t>(size_of(accum)),
                               .threads = exec.pool->size(),
                               .converts_weight = dtype != accum,
                               .may_keep = work == loss::Work::kBoth,
                               .gradients = work != loss::Work::kForward,
                               .extras = extras.any(),
                               .one_chunk = rounds_dweight(call.grad, dtype)},
                     call.workspace.budget_bytes);
  }
  static size_t workspace_bytes(const Plan& plan) { return plan.bytes; }
};
using Loops = loss::ChunkLoops<Cpu>;

}  // namespace

LossChunks chunks(const CpuExec& exec, const LinearCrossEntropyForwardBackward& args, int64_t plan_vocab) {
  const LossPlan plan = Loops::plan_of(exec, args, plan_vocab);
  return {plan.chunks, plan.chunk_rows};
}

void launch(const CpuExec& exec, const LinearCrossEntropyForward& args) {
  Loops::run(exec, args);
}
void launch(const CpuExec& exec, const LinearCrossEntropyBackward& args) {
  Loops::run(exec, args);
}
void launch(const CpuExec& exec, const LinearCrossEntropyForwardBackward& args) {
  Loops::run(exec, args);
}
void launch(const CpuExec& exec, const LinearCrossEntropyBegin& args) {
  Loops::run(exec, args);
}
void launch(const CpuExec& exec, const LinearCrossEntropyFinish& args) {
  Loops::run(exec, args);
}

size_t workspace_bytes(const CpuExec& exec, const LinearCrossEntropyForward& args) {
  return Loops::bytes(exec, args);
}
size_t workspace_bytes(const CpuExec& exec, const LinearCrossEntropyBackward& args) {
  return Loops::bytes(exec, args);
}
size_t workspace_bytes(const CpuExec& exec, const LinearCrossEntropyForwardBackward& args) {
  return Loops::bytes(exec, args);
}
size_t workspace_bytes(const CpuExec& exec, const LinearCrossEntropyBegin& args) {
  return Loops::bytes(exec, args);
}
size_t workspace_bytes(const CpuExec& exec, const LinearCrossEntropyFinish& args) {
  return Loops::bytes(exec, args);
}

}  // namespace xce

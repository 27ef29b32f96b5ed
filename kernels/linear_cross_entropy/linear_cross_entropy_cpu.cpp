// The fused loss on the CPU. The loops are in chunk_loops.h, the work is in chunk_cpu.h.
#include "kernels/linear_cross_entropy/linear_cross_entropy.h"

#include "kernels/linear_cross_entropy/chunk_cpu.h"
#include "kernels/linear_cross_entropy/chunk_loops.h"

namespace xce {
namespace {

struct Cpu {
  using Exec = CpuExec;
  using Plan = LossPlan;
  template <class T>
  using Chunk = loss::Chunk<T>;
  static constexpr size_t kWorkspaceAlignment = 1;

  static Plan plan(const CpuExec& exec, const LinearCrossEntropyInputs& in, int64_t vocab, loss::Work work,
                   size_t budget_bytes) {
    return plan_loss(LossShape{.rows = in.rows,
                               .hidden = in.hidden,
                               .vocab = vocab,
                               .accum_bytes = static_cast<int64_t>(size_of(accum_dtype(in.dtype))),
                               .threads = exec.pool->size(),
                               .converts_weight = in.dtype != accum_dtype(in.dtype),
                               .may_keep = work == loss::Work::kBoth,
                               .gradients = work != loss::Work::kForward},
                     budget_bytes);
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

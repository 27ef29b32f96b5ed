// The fused loss on a GPU. The loops are in chunk_loops.h, the work is in chunk_cuda.cuh.
#include "kernels/linear_cross_entropy/linear_cross_entropy.h"

#include "kernels/linear_cross_entropy/chunk_cuda.cuh"
#include "kernels/linear_cross_entropy/chunk_loops.h"

namespace xce {
namespace {

struct Cuda {
  using Exec = CudaExec;
  using Plan = CudaLossPlan;
  template <class T>
  using Chunk = loss::CudaChunk<T>;
  static constexpr size_t kWorkspaceAlignment = 16;

  static Plan plan(const CudaExec&, const LinearCrossEntropyForwardBackward& call, int64_t vocab, loss::Work work,
                   loss::Extras) {
    const LinearCrossEntropyInputs& in = call.in;
    const auto bytes = static_cast<int64_t>(size_of(in.dtype));
    const auto accum_bytes = static_cast<int64_t>(size_of(accum_dtype(in.dtype)));
    return plan_loss(CudaLossShape{.rows = in.rows,
                                   .hidden = in.hidden,
                                   .vocab = vocab,
                                   .bytes = bytes,
                                   .accum_bytes = accum_bytes,
                                   .may_keep = work == loss::Work::kBoth,
                                   .gradients = work != loss::Work::kForward,
                                   .single_chunk = call.grad.dweight_in_dtype && bytes < accum_bytes},
                     call.workspace.budget_bytes);
  }
  static size_t workspace_bytes(const Plan& plan) { return plan.total; }
};
using Loops = loss::ChunkLoops<Cuda>;

}  // namespace

LossChunks chunks(const CudaExec& exec, const LinearCrossEntropyForwardBackward& args, int64_t plan_vocab) {
  const CudaLossPlan plan = Loops::plan_of(exec, args, plan_vocab);
  return {plan.chunks, plan.chunk_rows};
}

void launch(const CudaExec& exec, const LinearCrossEntropyForward& args) {
  Loops::run(exec, args);
}
void launch(const CudaExec& exec, const LinearCrossEntropyBackward& args) {
  Loops::run(exec, args);
}
void launch(const CudaExec& exec, const LinearCrossEntropyForwardBackward& args) {
  Loops::run(exec, args);
}
void launch(const CudaExec& exec, const LinearCrossEntropyBegin& args) {
  Loops::run(exec, args);
}
void launch(const CudaExec& exec, const LinearCrossEntropyFinish& args) {
  Loops::run(exec, args);
}

size_t workspace_bytes(const CudaExec& exec, const LinearCrossEntropyForward& args) {
  return Loops::bytes(exec, args);
}
size_t workspace_bytes(const CudaExec& exec, const LinearCrossEntropyBackward& args) {
  return Loops::bytes(exec, args);
}
size_t workspace_bytes(const CudaExec& exec, const LinearCrossEntropyForwardBackward& args) {
  return Loops::bytes(exec, args);
}
size_t workspace_bytes(const CudaExec& exec, const LinearCrossEntropyBegin& args) {
  return Loops::bytes(exec, args);
}
size_t workspace_bytes(const CudaExec& exec, const LinearCrossEntropyFinish& args) {
  return Loops::bytes(exec, args);
}

}  // namespace xce

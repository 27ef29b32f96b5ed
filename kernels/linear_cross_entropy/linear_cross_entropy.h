// Cross-entropy of a linear head, z = x W^T + bias, whose (rows, vocab) logits are never kept: loss and gradients by
// chunks of rows inside the caller's workspace. Mathematics, memory and design: README.md here; the loss itself:
// cross_entropy/loss.h.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cross_entropy/loss.h"

namespace xce {

// The operands. A rank that holds a part of the vocabulary gives its first global label and the whole vocabulary's
// size; columns whose global label is vocab_global or more are padding: no logit, zero gradient.
struct LinearCrossEntropyInputs {
  const void* x;       // (rows, hidden) dtype, rows ldx apart
  const void* weight;  // (vocab, hidden) dtype, rows ldw apart
  const void* bias;    // (vocab) dtype, or null
  LossTargets targets;
  int64_t rows, hidden, vocab;
  DType dtype;
  int64_t ldx = 0, ldw = 0;  // elements; 0: hidden
  int64_t shard_offset = 0;
  int64_t vocab_global = -1;  // -1: shard_offset + vocab
  bool allow_tf32 = false;    // fp32 products of a GPU may round their operands to TF32
};

// Each may be null: its work is skipped, the others are unchanged.
struct LinearCrossEntropyGradients {
  void* dx = nullptr;       // (rows, hidden) rows ld_dx apart; dtype, or accum_dtype with dx_in_accum_dtype; 0 on
                            // ignored rows
  void* dweight = nullptr;  // (vocab, hidden) rows ld_dweight apart, accum_dtype; overwritten or, with
                            // accumulate_dweight, added to
  void* dbias = nullptr;    // (vocab) as dweight
  bool accumulate_dx = false;
  bool accumulate_dweight = false;
  bool dx_in_accum_dtype = false;  // a sharded head sums dx over its ranks before it rounds
  // dweight and dbias of dtype, each rounded once: all rows are one chunk, which needs a larger least budget. Not with
  // accumulate_dweight.
  bool dweight_in_dtype = false;
  int64_t ld_dx = 0, ld_dweight = 0;  // elements; 0: hidden
};

// The scratch of one call. The caller chooses a budget, asks workspace_bytes(exec, args) (never above the budget; a
// budget below the minimum throws Error naming it) and passes that much. Chunks and tiles follow from the budget and
// the shapes alone.
struct LossWorkspace {
  size_t budget_bytes = size_t{128} << 20;
  void* data = nullptr;
  size_t size_bytes = 0;
};

// Loss and residual. On a shard of the vocabulary `out` must be empty and `statistics` asked for: merge them over the
// ranks (LossMergeStatistics), then LossFromStatistics.
struct LinearCrossEntropyForward {
  LinearCrossEntropyInputs in;
  LossOptions options;
  LossOutputs out;
  LossWorkspace workspace;
  double* statistics = nullptr;  // (kLossStatistics, rows) out, entropy and argmax included; or null
};

// Gradients from the residual; the logits are recomputed tile by tile (three matrix products; forward was one). On a
// shard dx is the shard's part of the sum.
struct LinearCrossEntropyBackward {
  LinearCrossEntropyInputs in;
  LossOptions options;
  const void* offset;  // (rows) accum_dtype, of forward
  const void* logsum;  // (rows) accum_dtype, of forward
  LossUpstream upstream;
  LinearCrossEntropyGradients grad;
  LossWorkspace workspace;
};

// Both in one call and three matrix products: a chunk's logits stay in the workspace until its gradients are done. A
// budget too small for chunks of a useful height makes it recompute the logits instead: four products, any vocabulary.
// The whole vocabulary only; shards use Begin and Finish.
struct LinearCrossEntropyForwardBackward {
  LinearCrossEntropyInputs in;
  LossOptions options;
  LossOutputs out;
  LossUpstream upstream;
  LinearCrossEntropyGradients grad;
  LossWorkspace workspace;
};

// The same by hand, for a sharded head: for each chunk in order 0 .. count - 1, Begin, merge the statistics over the
// ranks, Finish. The workspace is left alone between the first Begin and the last Finish; the reduced results are
// complete after that one. Every rank finds the same chunks when rows, hidden, budget, thread count and the largest
// shard's size agree: give that size as plan_vocab.
struct LinearCrossEntropyBegin {
  LinearCrossEntropyForwardBackward call;
  int64_t chunk;
  double* statistics;      // (kLossStatistics, chunk_rows) out
  int64_t plan_vocab = 0;  // 0: in.vocab
};
struct LinearCrossEntropyFinish {
  LinearCrossEntropyForwardBackward call;
  int64_t chunk;
  const double* statistics;  // (kLossStatistics, chunk_rows) merged
  int64_t plan_vocab = 0;
};

// How a call is cut: `count` chunks (at least one) of `rows_per_chunk` rows, the last one shorter; chunk c starts at
// row c * rows_per_chunk and its statistics have min(rows_per_chunk, rows - start) rows.
struct LossChunks {
  int64_t count, rows_per_chunk;
};
LossChunks chunks(const CpuExec& exec, const LinearCrossEntropyForwardBackward& args, int64_t plan_vocab = 0);
LossChunks chunks(const CudaExec& exec, const LinearCrossEntropyForwardBackward& args, int64_t plan_vocab = 0);

void launch(const CpuExec& exec, const LinearCrossEntropyForward& args);
void launch(const CpuExec& exec, const LinearCrossEntropyBackward& args);
void launch(const CpuExec& exec, const LinearCrossEntropyForwardBackward& args);
void launch(const CpuExec& exec, const LinearCrossEntropyBegin& args);
void launch(const CpuExec& exec, const LinearCrossEntropyFinish& args);
size_t workspace_bytes(const CpuExec& exec, const LinearCrossEntropyForward& args);
size_t workspace_bytes(const CpuExec& exec, const LinearCrossEntropyBackward& args);
size_t workspace_bytes(const CpuExec& exec, const LinearCrossEntropyForwardBackward& args);
size_t workspace_bytes(const CpuExec& exec, const LinearCrossEntropyBegin& args);
size_t workspace_bytes(const CpuExec& exec, const LinearCrossEntropyFinish& args);
void launch(const CudaExec& exec, const LinearCrossEntropyForward& args);
void launch(const CudaExec& exec, const LinearCrossEntropyBackward& args);
void launch(const CudaExec& exec, const LinearCrossEntropyForwardBackward& args);
void launch(const CudaExec& exec, const LinearCrossEntropyBegin& args);
void launch(const CudaExec& exec, const LinearCrossEntropyFinish& args);
size_t workspace_bytes(const CudaExec& exec, const LinearCrossEntropyForward& args);
size_t workspace_bytes(const CudaExec& exec, const LinearCrossEntropyBackward& args);
size_t workspace_bytes(const CudaExec& exec, const LinearCrossEntropyForwardBackward& args);
size_t workspace_bytes(const CudaExec& exec, const LinearCrossEntropyBegin& args);
size_t workspace_bytes(const CudaExec& exec, const LinearCrossEntropyFinish& args);

}  // namespace xce

// Cross-entropy over given logits, rows ld apart: loss, residual and gradient dlogits_v = s g ((S + 2 z_loss lse) p_v -
// a_v) (1 - (z_v / cap)^2), g = upstream u / D. The loss and its options: loss.h. Nothing of size (rows, vocab) is kept
// beyond the caller's arrays.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cross_entropy/loss.h"

namespace xce {

// On a shard of the vocabulary, columns whose global label is vocab_global or more are padding: no logit, zero
// gradient.
struct CrossEntropyInputs {
  const void* logits;  // (rows, vocab) dtype, rows ld apart
  LossTargets targets;
  int64_t rows, vocab;
  DType dtype;
  int64_t ld = 0;  // elements; 0: vocab
  int64_t shard_offset = 0;
  int64_t vocab_global = -1;  // -1: shard_offset + vocab
};

// Loss and residual, O(rows). On a shard `out` must be empty and `statistics` asked for: LossMergeStatistics over the
// ranks, then LossFromStatistics.
struct CrossEntropyForward {
  CrossEntropyInputs in;
  LossOptions options;
  LossOutputs out;
  double* statistics = nullptr;  // (kLossStatistics, rows) out, entropy and argmax included; or null
  void* workspace = nullptr;     // workspace_bytes(exec, args); may be null when that is 0
  size_t workspace_size_bytes = 0;
};

// The gradient from the logits and the residual; any shard.
struct CrossEntropyBackward {
  CrossEntropyInputs in;
  LossOptions options;
  const void* offset;  // (rows) accum_dtype, of forward
  const void* logsum;  // (rows) accum_dtype, of forward
  LossUpstream upstream;
  void* dlogits;              // (rows, vocab) dtype, rows ld_dlogits apart, out: 0 on ignored rows; may be the logits
  int64_t ld_dlogits = 0;     // elements; 0: vocab
  void* workspace = nullptr;  // workspace_bytes(exec, args); may be null when that is 0
  size_t workspace_size_bytes = 0;
};

// Both, row by row. The whole vocabulary only.
struct CrossEntropyForwardBackward {
  CrossEntropyInputs in;
  LossOptions options;
  LossOutputs out;
  LossUpstream upstream;
  void* dlogits;              // as CrossEntropyBackward's; overwrites the logits only when it is them
  int64_t ld_dlogits = 0;     // elements; 0: vocab
  void* workspace = nullptr;  // workspace_bytes(exec, args); may be null when that is 0
  size_t workspace_size_bytes = 0;
};

void launch(const CpuExec& exec, const CrossEntropyForward& args);
void launch(const CpuExec& exec, const CrossEntropyBackward& args);
void launch(const CpuExec& exec, const CrossEntropyForwardBackward& args);
size_t workspace_bytes(const CpuExec& exec, const CrossEntropyForward& args);
size_t workspace_bytes(const CpuExec& exec, const CrossEntropyBackward& args);
size_t workspace_bytes(const CpuExec& exec, const CrossEntropyForwardBackward& args);
void launch(const CudaExec& exec, const CrossEntropyForward& args);
void launch(const CudaExec& exec, const CrossEntropyBackward& args);
void launch(const CudaExec& exec, const CrossEntropyForwardBackward& args);
size_t workspace_bytes(const CudaExec& exec, const CrossEntropyForward& args);
size_t workspace_bytes(const CudaExec& exec, const CrossEntropyBackward& args);
size_t workspace_bytes(const CudaExec& exec, const CrossEntropyForwardBackward& args);

}  // namespace xce

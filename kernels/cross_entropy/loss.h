// What the two losses share: targets, options, results, and the row statistics that vocabulary shards merge.
//   L_i = logsum_i - (z_y - offset_i) + z_loss * lse_i^2 on valid rows, 0 on ignored ones;  offset + logsum = lse = log
//   sum_v exp z_v. The reduced loss is sum_i L_i / D: D the caller's denominator, else the number of valid rows (mean)
//   or 1 (none, sum).
// A row is valid when its target is not ignore_index and lies in [0, vocab_global); an out-of-range label counts as
// ignored.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/base/dtype.h"
#include "kernels/base/exec.h"

namespace xce {

enum class Reduction : int32_t { kNone = 0, kMean = 1, kSum = 2 };

struct LossTargets {
  const void* index;                 // (rows) IndexType, the global label of each row
  IndexType type = IndexType::kI32;  //
  int64_t stride = 1;                // elements between two rows' labels
  int64_t ignore_index = -100;       // any value, also one inside the vocabulary
};

struct LossOptions {
  Reduction reduction = Reduction::kMean;
  double z_loss = 0;  // coefficient of lse^2 on valid rows, included in the loss once
  const double* denominator =
      nullptr;  // () D, e.g. of all micro-batches and ranks; null: own. D = 0: zero loss and gradients
};

// Every pointer may be null; every element of what is given is written.
struct LossOutputs {
  void* loss = nullptr;             // () accum_dtype: the reduced loss (with reduction none: the sum)
  double* loss_total = nullptr;     // () the reduced loss is added to it: a step's sum over its micro-batches
  void* row_loss = nullptr;         // (rows) accum_dtype: L_i, undivided, 0 on ignored rows
  void* offset = nullptr;           // (rows) accum_dtype: residual, 0 on ignored rows
  void* logsum = nullptr;           // (rows) accum_dtype: residual, 0 on ignored rows
  void* z_loss = nullptr;           // () accum_dtype: the z-loss's share of `loss`
  int64_t* n_valid = nullptr;       // ()
  int64_t* out_of_range = nullptr;  // () rows whose label is neither ignore_index nor in [0, vocab_global)
};

// The gradient of the reduced loss (reduction none: of each row's loss) that backward multiplies with.
struct LossUpstream {
  const void* gradient = nullptr;  // accum_dtype: () for mean and sum, (rows) for none; null: 1
  int64_t stride = 1;              // elements between two rows' values, 0 allowed; used by reduction none only
};

// n_valid and the mean's denominator before any loss is computed: sum them over micro-batches and ranks, pass the sum.
struct LossCount {
  LossTargets targets;
  int64_t rows;
  int64_t vocab_global;
  int64_t* n_valid;                 // () out or, with accumulate, added to; may be null
  double* weight_sum;               // () out or, with accumulate, added to; may be null
  int64_t* out_of_range = nullptr;  // () out or, with accumulate, added to; may be null
  bool accumulate = false;
};

// Row statistics over a part of the vocabulary: three arrays in one block (3, rows) of accum_dtype:
//   max over the part (-inf: empty), sum of exp(z - max), and z_y where the part holds the label, else 0.
// Merges `count` such sets, in order; ignored rows hold an empty set and stay empty.
struct LossMergeStatistics {
  const void* sets;  // (count, 3, rows) accum_dtype, as an all_gather lays them out
  void* merged;      // (3, rows) accum_dtype, out; may be the first set
  int64_t count, rows;
  DType dtype;
};

// Loss and residual of rows whose statistics over the whole vocabulary are known (a sharded forward's last step).
struct LossFromStatistics {
  const void* statistics;  // (3, rows) accum_dtype
  LossTargets targets;
  int64_t rows;
  int64_t vocab_global;
  DType dtype;
  LossOptions options;
  LossOutputs out;
};

void launch(const CpuExec& exec, const LossCount& args);
void launch(const CpuExec& exec, const LossMergeStatistics& args);
void launch(const CpuExec& exec, const LossFromStatistics& args);
void launch(const CudaExec& exec, const LossCount& args);
void launch(const CudaExec& exec, const LossMergeStatistics& args);
void launch(const CudaExec& exec, const LossFromStatistics& args);

}  // namespace xce

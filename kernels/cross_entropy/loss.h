// What the two losses share: targets, options, results, and the row statistics that vocabulary shards merge.
//   z_v = cap tanh(s y_v / cap), or s y_v without softcap; y the logits with their bias, s the logit scale
//   a_v, the target's mass: w_y (1 - e) [v = y] + (e / V) w_v of a label y, w_v ((1 - e) t_v + e / V) of probabilities
//   t L_i = u_i (S logsum - sum_{a_v != 0} a_v (z_v - offset) + z_loss lse^2),  S = sum_v a_v;  0 on ignored rows
//   offset + logsum = lse = log sum_v exp z_v;  e the label smoothing, V vocab_global, w class and u token weights
// The reduced loss is sum_i L_i / D: D the caller's denominator, else the weight sum (mean) or 1 (none, sum). The
// weight sum is sum_i u_i w_y over valid rows (probabilities: sum_i u_i). A row is valid when its label is not
// ignore_index and lies in [0, vocab_global), and its token weight is not 0; an out-of-range label counts as ignored.
// The mathematics in full: linear_cross_entropy/README.md.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/base/dtype.h"
#include "kernels/base/exec.h"

namespace xce {

enum class Reduction : int32_t { kNone = 0, kMean = 1, kSum = 2 };

// Labels, or else probabilities.
struct LossTargets {
  const void* index = nullptr;           // (rows) IndexType, the global label of each row
  IndexType type = IndexType::kI32;      //
  int64_t stride = 1;                    // elements between two rows' labels
  int64_t ignore_index = -100;           // any value, also one inside the vocabulary; of labels only
  const void* probabilities = nullptr;   // (rows, vocab) probability_type, of the columns here
  DType probability_type = DType::kF32;  // any
  int64_t ld_probabilities = 0;          // elements; 0: vocab
  // (rows) sum of a_v over the whole vocabulary, the fifth array of merged statistics: with probabilities a shard's
  // Backward needs it, because the residual does not tell; elsewhere null, or else used instead of summing.
  const double* probability_mass = nullptr;
};

struct LossOptions {
  Reduction reduction = Reduction::kMean;
  double z_loss = 0;                    // coefficient of lse^2 on valid rows, included in the loss once
  double label_smoothing = 0;           // e, in [0, 1]
  double softcap = 0;                   // cap, positive; 0: none
  double logit_scale = 1;               // s, finite
  const void* class_weights = nullptr;  // (vocab_global) accum_dtype: w, by global label, also on a shard; null: 1
  const void* token_weights = nullptr;  // (rows) accum_dtype: u; null: 1
  const double* denominator =
      nullptr;                // () D, e.g. of all micro-batches and ranks; null: own. D = 0: zero loss and gradients
  bool empty_is_nan = false;  // D = 0: the reduced loss is NaN (as PyTorch's mean), gradients stay zero
  bool out_of_range_is_nan = false;  // a label out of range: its row's loss is NaN, so the reduced loss; no gradient
};

// Every pointer may be null; every element of what is given is written.
struct LossOutputs {
  void* loss = nullptr;                   // () accum_dtype: the reduced loss (with reduction none: the sum)
  double* loss_total = nullptr;           // () the reduced loss is added to it: a step's sum over its micro-batches
  void* row_loss = nullptr;               // (rows) accum_dtype: L_i, undivided, 0 on ignored rows
  void* offset = nullptr;                 // (rows) accum_dtype: residual, 0 on ignored rows
  void* logsum = nullptr;                 // (rows) accum_dtype: residual, 0 on ignored rows
  void* z_loss = nullptr;                 // () accum_dtype: the z-loss's share of `loss`
  void* row_max = nullptr;                // (rows) accum_dtype: max_v z_v, 0 on ignored rows
  void* row_entropy = nullptr;            // (rows) accum_dtype: -sum_v p_v log p_v, 0 on ignored rows
  int64_t* argmax = nullptr;              // (rows) global label of max_v z_v, the lowest of equals; -1 on ignored rows
  int64_t* n_correct = nullptr;           // () valid rows whose argmax is the label; of labels only
  int64_t* n_valid = nullptr;             // () valid rows
  double* weight_sum = nullptr;           // () see above
  int64_t* out_of_range = nullptr;        // () rows whose label is neither ignore_index nor in [0, vocab_global)
  int64_t* first_out_of_range = nullptr;  // () the first such row, -1 without
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
  const void* class_weights = nullptr;  // as LossOptions'
  const void* token_weights = nullptr;
  DType dtype = DType::kF32;              // weights are of its accum_dtype
  int64_t* first_out_of_range = nullptr;  // () out or, with accumulate, kept when it is >= 0; may be null
};

// Row statistics over a part of the vocabulary: kLossStatistics arrays of fp64 in one block, (kLossStatistics, rows):
//   max m over the part (-inf: empty); sum of exp(z - m); z_y where the part holds the label, else 0;
//   of the mass that smoothing or probabilities give (else 0): sum of a_v (z_v - m) and sum of a_v, over a_v != 0;
//   where the entropy is asked for (else 0) sum of exp(z - m) (z - m); where argmax or n_correct is, its label (else
//   -1). A Forward's statistics have both.
// Merges `count` such sets, in order; ignored rows hold an empty set and stay empty. All ranks must ask for the same.
inline constexpr int64_t kLossStatistics = 7;
struct LossMergeStatistics {
  const double* sets;  // (count, kLossStatistics, rows), as an all_gather lays them out
  double* merged;      // (kLossStatistics, rows) out; may be the first set
  int64_t count, rows;
};

// Loss and residual of rows whose statistics over the whole vocabulary are known (a sharded forward's last step).
struct LossFromStatistics {
  const double* statistics;  // (kLossStatistics, rows)
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

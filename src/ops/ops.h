// The menu: every differentiable op of the trainer on one page. Values are (rows, cols) with one row per token; weights
// are (out, in). Each op runs its kernel at once and, while the tape records, leaves one backward step that keeps only
// what is named.
#pragma once

#include <cstdint>

#include "src/autograd/tape.h"
#include "src/core/buffer.h"

namespace xce {

// Token ids or targets in device memory, one per row; borrowed, and read again in the backward.
struct Tokens {
  const int32_t* ids;
  int64_t rows;
};

// y[r] = weight[token[r]]. Keeps nothing.
Var embedding(const Var& weight, Tokens tokens);

// y = weight * x / sqrt(mean(x^2) + eps); weight (1, cols). Keeps x and one number a row.
Var rms_norm(const Var& x, const Var& weight, double eps);

// y = x weight^T. Keeps x.
Var linear(const Var& x, const Var& weight);

// y = residual + x weight^T, rounded once. Keeps x.
Var linear_add(const Var& residual, const Var& x, const Var& weight);

struct RopeTable {
  const Buffer* table;  // (seq_len, head_dim / 2, 2) accum_dtype: rope_table's values
  int64_t seq_len, head_dim;
};
// Rotates the first `heads` heads of each row of x by its position, in place: x must not be used afterwards. Keeps
// nothing.
Var rope(const Var& x, int64_t heads, RopeTable table);

struct Heads {
  int64_t query, key_value, dim, seq_len;
};
// Causal attention over qkv (tokens, (query + 2 key_value) dim), each row q then k then v; y (tokens, query dim).
// Keeps qkv, y and one number a (token, head).
Var attention(const Var& qkv, Heads heads);

// y = residual + (silu(gate) * up) weight^T of gate_up = [gate | up], rounded once. Keeps gate_up; its backward makes
// silu(gate) * up again, and writes gate_up's gradient over it if nobody else holds gate_up.
Var swiglu_linear_add(const Var& residual, const Var& gate_up, const Var& weight);

// y = a + b. Keeps nothing.
Var add(const Var& a, const Var& b);

// What training adds to the mean cross-entropy; evaluation measures it plain.
struct LossTerms {
  double z_loss = 0;           // coefficient of the squared log-partition
  double label_smoothing = 0;  // the share of each target's mass that is spread over the vocabulary
};
// What the loss reads and writes besides hidden states and weights; device memory, borrowed.
struct LossIo {
  Tokens targets;             // ignore_index -100
  const double* denominator;  // () the global batch's number of valid targets
  double* loss;               // () grows by this micro-batch's share of the mean loss
  LossTerms terms = {};
  int64_t workspace_bytes = 0;  // budget for the logits of a chunk of rows
};
// Mean cross-entropy of softmax(h weight^T) against the targets, without ever holding the logits. While recording, all
// of the work is done in the backward, in one forward_backward call that keeps nothing of size (rows, vocab). Keeps h.
void linear_cross_entropy(const Var& h, const Var& weight, const LossIo& io);

}  // namespace xce

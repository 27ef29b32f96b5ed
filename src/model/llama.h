// Llama (Touvron et al. 2023, as in Hugging Face's LlamaForCausalLM): token embedding, blocks of grouped-query
// attention with rotary positions and a SwiGLU feed-forward network behind RMSNorms, a final norm and a tied or untied
// linear head.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "src/core/model_config.h"
#include "src/core/param.h"
#include "src/ops/ops.h"

namespace xce {

// A parameter or a part of its rows under its Hugging Face name: our fused projections are several of theirs.
struct NamedSlice {
  std::string name;
  std::vector<int64_t> shape;  // (cols) for a vector, else (rows, cols)
  int parameter;
  int64_t row_begin;
};

class Llama {
 public:
  // Registers the model's parameters in `parameters` (llama_params.cpp), which it borrows.
  Llama(const ModelConfig& config, ParameterSet& parameters);

  const ModelConfig& config() const { return config_; }
  const std::vector<NamedSlice>& named_slices() const { return slices_; }
  int unit_count() const { return static_cast<int>(config_.num_hidden_layers) + 2; }

  // Makes the rotary table for sequences of seq_len tokens; call before loss and hidden.
  void prepare(int64_t seq_len, Memory& memory = host_memory());

  // The loss of the tokens' whole sequences of the prepared length, into io.loss.
  void loss(Tape& tape, Tokens tokens, const LossIo& io, bool recompute_blocks) const;
  // Hidden states after the final norm, (tokens.rows, hidden_size), and the head that makes logits of them: for
  // sampling.
  Var hidden(Tape& tape, Tokens tokens) const;
  Var head(Tape& tape) const { return tape.parameter(head_); }

  // Matrix-product FLOPs to train one token: 6 (block and head weights) + 6 layers * hidden * seq_len for causal
  // attention.
  double flops_per_token(int64_t seq_len) const;

 private:
  struct Layer {
    int attention_norm, qkv, o, ffn_norm, gate_up, down;
  };
  void register_parameters();
  int add_parameter(const std::string& name, int64_t rows, int64_t cols, int unit, double init_stddev);
  Var blocks(Tape& tape, Tokens tokens, bool recompute) const;
  Var block(Tape& tape, const Layer& layer, const Var& x) const;
  Var final_norm(Tape& tape, const Var& x) const;

  ModelConfig config_;
  ParameterSet* parameters_;
  std::vector<NamedSlice> slices_;
  std::vector<Layer> layers_;
  int embedding_ = -1, norm_ = -1, head_ = -1;
  Buffer rope_table_;
  int64_t seq_len_ = 0;
};

}  // namespace xce

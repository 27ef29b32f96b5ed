#include "src/model/llama.h"

#include "kernels/elementwise.h"

namespace xce {

Llama::Llama(const ModelConfig& config, ParameterSet& parameters) : config_(config), parameters_(&parameters) {
  const ModelConfig& c = config_;
  XCE_CHECK(c.head_dim > 0 && c.head_dim % 2 == 0, "an even model.head_dim", c.head_dim);
  XCE_CHECK(c.num_key_value_heads > 0 && c.num_attention_heads % c.num_key_value_heads == 0,
            "model.num_key_value_heads that divides num_attention_heads", c.num_key_value_heads);
  register_parameters();
}

void Llama::prepare(int64_t seq_len, Memory& memory) {
  const DType dtype = accum_dtype(parameters_->dtype());
  seq_len_ = seq_len;
  std::vector<double> table = rope_table(seq_len, config_.head_dim, config_.rope_theta,
                                         config_.has_rope_scaling ? config_.rope_scaling : RopeScaling{});
  rope_table_ = Buffer(table.size() * size_of(dtype), memory);
  visit_dtype(dtype, [&]<class T>(std::type_identity<T>) {
    std::vector<T> values(table.size());
    for (size_t i = 0; i < table.size(); ++i) values[i] = static_cast<T>(static_cast<float>(table[i]));
    memory.copy_in(rope_table_.data(), values.data(), values.size() * sizeof(T));
  });
}

Var Llama::block(Tape& tape, const Layer& layer, const Var& x) const {
  auto weight = [&](int index) { return tape.parameter(index); };
  Heads heads{config_.num_attention_heads, config_.num_key_value_heads, config_.head_dim, seq_len_};
  RopeTable positions{&rope_table_, seq_len_, config_.head_dim};
  double eps = config_.rms_norm_eps;

  Var qkv = linear(rms_norm(x, weight(layer.attention_norm), eps), weight(layer.qkv));
  Var h = linear_add(x, attention(rope(qkv, heads.query + heads.key_value, positions), heads), weight(layer.o));
  Var gate_up = linear(rms_norm(h, weight(layer.ffn_norm), eps), weight(layer.gate_up));
  return swiglu_linear_add(h, gate_up, weight(layer.down));
}

Var Llama::final_norm(Tape& tape, const Var& x) const {
  return rms_norm(x, tape.parameter(norm_), config_.rms_norm_eps);
}

Var Llama::blocks(Tape& tape, Tokens tokens, bool recompute) const {
  XCE_CHECK(seq_len_ > 0 && tokens.rows % seq_len_ == 0, str("whole sequences of ", seq_len_, " tokens"), tokens.rows);
  Var x = tape.unit({0, "embedding"}, false, Var(),
                    [&](const Var&) { return embedding(tape.parameter(embedding_), tokens); });
  int unit = 0;
  for (const Layer& layer : layers_) {
    std::string name = "layer " + std::to_string(unit);
    x = tape.unit({++unit, name}, recompute, x,
                  [this, &tape, &layer](const Var& in) { return block(tape, layer, in); });
  }
  return x;
}

void Llama::loss(Tape& tape, Tokens tokens, const LossIo& io, bool recompute_blocks) const {
  Var x = blocks(tape, tokens, recompute_blocks);
  tape.unit({unit_count() - 1, "head and loss"}, false, x, [&](const Var& in) {
    linear_cross_entropy(final_norm(tape, in), head(tape), io);
    return Var();
  });
}

Var Llama::hidden(Tape& tape, Tokens tokens) const {
  return final_norm(tape, blocks(tape, tokens, false));
}

}  // namespace xce

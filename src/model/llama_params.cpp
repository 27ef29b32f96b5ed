// The one list of a Llama's parameters: shapes, units, initial values, and the Hugging Face names of their rows.
#include "src/model/llama.h"

namespace xce {

int Llama::add_parameter(const std::string& name, int64_t rows, int64_t cols, int unit, double init_stddev) {
  return parameters_->add({.name = name, .rows = rows, .cols = cols, .unit = unit, .init_stddev = init_stddev});
}

void Llama::register_parameters() {
  const ModelConfig& c = config_;
  const int64_t hidden = c.hidden_size, ffn = c.intermediate_size;
  const int64_t q_rows = c.num_attention_heads * c.head_dim, kv_rows = c.num_key_value_heads * c.head_dim;
  const double stddev = c.initializer_range;
  auto vector = [&](const std::string& name, int unit) {
    int index = add_parameter(name, 1, hidden, unit, 0);
    slices_.push_back({name + ".weight", {hidden}, index, 0});
    return index;
  };
  auto matrix = [&](const std::string& name, int64_t rows, int64_t cols, int unit) {
    int index = add_parameter(name, rows, cols, unit, stddev);
    slices_.push_back({name + ".weight", {rows, cols}, index, 0});
    return index;
  };
  // Several Hugging Face matrices with the same number of columns, one below the other.
  auto fused = [&](const std::string& name, int unit, const std::vector<std::pair<std::string, int64_t>>& parts) {
    int64_t rows = 0;
    for (const auto& part : parts) rows += part.second;
    int index = add_parameter(name, rows, hidden, unit, stddev);
    int64_t begin = 0;
    for (const auto& [part, part_rows] : parts) {
      slices_.push_back({part + ".weight", {part_rows, hidden}, index, begin});
      begin += part_rows;
    }
    return index;
  };

  int unit = 0;
  embedding_ = matrix("model.embed_tokens", c.vocab_size, hidden, unit++);
  for (int64_t i = 0; i < c.num_hidden_layers; ++i, ++unit) {
    const std::string at = "model.layers." + std::to_string(i), attention = at + ".self_attn", mlp = at + ".mlp";
    Layer layer{};
    layer.attention_norm = vector(at + ".input_layernorm", unit);
    layer.qkv =
        fused(attention + ".qkv_proj", unit,
              {{attention + ".q_proj", q_rows}, {attention + ".k_proj", kv_rows}, {attention + ".v_proj", kv_rows}});
    layer.o = matrix(attention + ".o_proj", hidden, q_rows, unit);
    layer.ffn_norm = vector(at + ".post_attention_layernorm", unit);
    layer.gate_up = fused(mlp + ".gate_up_proj", unit, {{mlp + ".gate_proj", ffn}, {mlp + ".up_proj", ffn}});
    layer.down = matrix(mlp + ".down_proj", hidden, ffn, unit);
    layers_.push_back(layer);
  }
  norm_ = vector("model.norm", unit);
  head_ = c.tie_word_embeddings ? embedding_ : matrix("lm_head", c.vocab_size, hidden, unit);
}

double Llama::flops_per_token(int64_t seq_len) const {
  double weights = static_cast<double>(config_.vocab_size) * static_cast<double>(config_.hidden_size);
  for (const Layer& layer : layers_)
    for (int index : {layer.qkv, layer.o, layer.gate_up, layer.down})
      weights += static_cast<double>((*parameters_)[index].size());
  double attention = static_cast<double>(config_.num_hidden_layers) *
                     static_cast<double>(config_.num_attention_heads * config_.head_dim) * static_cast<double>(seq_len);
  return 6 * weights + 6 * attention;
}

}  // namespace xce

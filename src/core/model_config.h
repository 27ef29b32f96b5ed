// The shape of a Llama model, with the names and meanings of Hugging Face's config.json.
#pragma once

#include <cstdint>

#include "kernels/rope.h"

namespace xce {

struct ModelConfig {
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  int64_t num_hidden_layers = 0;
  int64_t num_attention_heads = 0;
  int64_t num_key_value_heads = 0;  // divides num_attention_heads
  int64_t head_dim = 0;             // even; often hidden_size / num_attention_heads
  int64_t max_position_embeddings = 2048;
  double rms_norm_eps = 1e-5;
  double rope_theta = 10000.0;
  double initializer_range = 0.02;
  bool tie_word_embeddings = false;
  bool has_rope_scaling = false;  // false: plain rotary embedding, rope_scaling is not looked at
  RopeScaling rope_scaling{};     // Llama 3's
};

}  // namespace xce

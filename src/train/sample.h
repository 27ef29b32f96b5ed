// Text from a model: repeated forward passes over the last seq_len tokens, the next token drawn from the softmax.
#pragma once

#include <cstdint>
#include <vector>

#include "src/core/device.h"
#include "src/model/llama.h"

namespace xce {

struct SampleOptions {
  int64_t count = 200;       // tokens to append
  int64_t seq_len = 0;       // the context window; the model is prepared for it
  double temperature = 0.8;  // 0: always the likeliest token
  uint64_t seed = 0;
};

// The prompt (at least one token, ids below the vocabulary) followed by options.count drawn tokens.
std::vector<int32_t> sample(const Llama& model, ParameterSet& parameters, Device& device, std::vector<int32_t> prompt,
                            const SampleOptions& options);

}  // namespace xce

// Hugging Face's config.json of LlamaForCausalLM. Reads the spellings of transformers 4 (rope_theta, rope_scaling,
// torch_dtype) and 5 (rope_parameters, dtype); writes those of 4, which both read.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "kernels/base/dtype.h"
#include "src/core/model_config.h"

namespace xce {

struct HfConfig {
  ModelConfig model;
  std::optional<int64_t> bos_token_id, eos_token_id;
  DType dtype = DType::kF32;  // of the stored tensors, as config.json says; float16 is read as kF32
};

// Absent keys have Hugging Face's defaults. kCorrupt: not JSON, a missing or mistyped key. kUsage, naming key and
// value: what this project does not train (other architectures and activations, biases, other rope types, quantised
// weights, sizes outside the limits of the settings of the same names).
HfConfig parse_hf_config(const std::string& text, const std::string& file_name);
HfConfig read_hf_config(const std::filesystem::path& path);
std::string hf_config_to_json(const HfConfig& config);

}  // namespace xce

// A Llama to and from a Hugging Face directory (config.json, model.safetensors).
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "src/io/hf_directory.h"
#include "src/model/llama.h"

namespace xce {

// The keys of config.json in which two models differ, with both values; max_position_embeddings and initializer_range
// do not make another model.
struct ModelDifference {
  std::string key, first, second;
};
std::vector<ModelDifference> model_differences(const ModelConfig& a, const ModelConfig& b);

// The directory's model must be this one: kUsage naming the first key of config.json that differs; tensors missing,
// extra or misshaped: kCorrupt. Needs no allocated parameters.
void check_llama(const HfDirectory& directory, const Llama& model);

// After check_llama fills the masters from the directory's tensors, whatever their type, and the compute view from
// them.
void load_llama(const HfDirectory& directory, const Llama& model, ParameterSet& parameters, const Exec& exec);

// Writes the compute view (what the loss was computed with), in its own dtype.
void save_llama(const std::filesystem::path& path, const Llama& model, ParameterSet& parameters);

}  // namespace xce

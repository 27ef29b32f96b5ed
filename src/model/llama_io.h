// A Llama to and from a Hugging Face directory (config.json, model.safetensors).
#pragma once

#include <filesystem>

#include "src/io/hf_directory.h"
#include "src/model/llama.h"

namespace xce {

// Fills the masters from the directory's tensors, whatever their type, and the compute view from them. The directory's
// model must be this one: kUsage naming the first key of config.json that differs; tensors missing, extra or misshaped:
// kCorrupt.
void load_llama(const HfDirectory& directory, const Llama& model, ParameterSet& parameters, const Exec& exec);

// Writes the compute view (what the loss was computed with), in its own dtype.
void save_llama(const std::filesystem::path& path, const Llama& model, ParameterSet& parameters);

}  // namespace xce

#include "src/model/llama_io.h"

namespace xce {
namespace {

int64_t offset(const NamedSlice& slice, const ParameterSet& parameters) {
  const Parameter& p = parameters[slice.parameter];
  return p.offset + slice.row_begin * p.cols;
}

size_t bytes(const NamedSlice& slice, DType dtype) {
  size_t size = size_of(dtype);
  for (int64_t extent : slice.shape) size *= static_cast<size_t>(extent);
  return size;
}

void check_same_model(const HfDirectory& directory, const ModelConfig& mine) {
  for (const ModelDifference& d : model_differences(directory.config().model, mine))
    throw Error(ErrorCode::kUsage, str((directory.path() / "config.json").string(), ": ", d.key, " is ", d.first,
                                       ", but model.", d.key, " of this run is ", d.second));
}

}  // namespace

std::vector<ModelDifference> model_differences(const ModelConfig& a, const ModelConfig& b) {
  std::vector<ModelDifference> differences;
  auto compare = [&](const char* key, auto first, auto second) {
    if (first != second) differences.push_back({key, str(first), str(second)});
  };
  compare("vocab_size", a.vocab_size, b.vocab_size);
  compare("hidden_size", a.hidden_size, b.hidden_size);
  compare("intermediate_size", a.intermediate_size, b.intermediate_size);
  compare("num_hidden_layers", a.num_hidden_layers, b.num_hidden_layers);
  compare("num_attention_heads", a.num_attention_heads, b.num_attention_heads);
  compare("num_key_value_heads", a.num_key_value_heads, b.num_key_value_heads);
  compare("head_dim", a.head_dim, b.head_dim);
  compare("rms_norm_eps", a.rms_norm_eps, b.rms_norm_eps);
  compare("rope_theta", a.rope_theta, b.rope_theta);
  compare("tie_word_embeddings", a.tie_word_embeddings, b.tie_word_embeddings);
  auto rope_type = [](const ModelConfig& model) { return model.has_rope_scaling ? "llama3" : "default"; };
  compare("rope_scaling.rope_type", std::string(rope_type(a)), std::string(rope_type(b)));
  if (!a.has_rope_scaling || !b.has_rope_scaling) return differences;
  const RopeScaling &x = a.rope_scaling, &y = b.rope_scaling;
  compare("rope_scaling.factor", x.factor, y.factor);
  compare("rope_scaling.low_freq_factor", x.low_freq_factor, y.low_freq_factor);
  compare("rope_scaling.high_freq_factor", x.high_freq_factor, y.high_freq_factor);
  compare("rope_scaling.original_max_position_embeddings", x.original_max_position, y.original_max_position);
  return differences;
}

void check_llama(const HfDirectory& directory, const Llama& model) {
  check_same_model(directory, model.config());
  std::vector<ExpectedTensor> expected;
  for (const NamedSlice& slice : model.named_slices()) expected.push_back({slice.name, slice.shape, ""});
  if (model.config().tie_word_embeddings)
    expected.push_back(
        {"lm_head.weight", {model.config().vocab_size, model.config().hidden_size}, "model.embed_tokens.weight"});
  directory.check(expected);
}

void load_llama(const HfDirectory& directory, const Llama& model, ParameterSet& parameters, const Exec& exec) {
  check_llama(directory, model);
  const DType dtype = accum_dtype(parameters.dtype());
  for (const NamedSlice& slice : model.named_slices()) {
    Buffer values(bytes(slice, dtype));
    directory.read(slice.name, dtype, values.data());
    parameters.memory().copy_in(parameters.master(offset(slice, parameters)), values.data(), values.size_bytes());
  }
  parameters.update_compute(exec);
}

void save_llama(const std::filesystem::path& path, const Llama& model, ParameterSet& parameters) {
  HfConfig config;
  config.model = model.config();
  config.dtype = parameters.dtype();
  std::vector<TensorToWrite> tensors;
  for (const NamedSlice& slice : model.named_slices()) {
    TensorToWrite tensor;
    tensor.name = slice.name;
    tensor.type = stored_type(parameters.dtype());
    tensor.shape = slice.shape;
    tensor.produce = [&parameters, &slice](const TensorToWrite::Sink& sink) {
      const size_t size = bytes(slice, parameters.dtype());
      sink(HostCopy(parameters.memory(), parameters.compute(offset(slice, parameters)), size).data(), size);
    };
    tensors.push_back(tensor);
  }
  write_hf_directory(path, config, tensors);
}

}  // namespace xce

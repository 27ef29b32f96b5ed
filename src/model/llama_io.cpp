#include "src/model/llama_io.h"

namespace xce {
namespace {

int64_t offset(const NamedSlice& slice, const ParameterSet& parameters) {
  const Parameter& p = parameters[slice.parameter];
  return p.offset + slice.row_begin * p.cols;
}

void check_same_model(const HfDirectory& directory, const ModelConfig& mine) {
  const ModelConfig& theirs = directory.config().model;
  auto same = [&](const char* key, auto a, auto b) {
    if (a != b)
      throw Error(ErrorCode::kUsage, str((directory.path() / "config.json").string(), ": ", key, " is ", a,
                                         ", but model.", key, " of this run is ", b));
  };
  same("vocab_size", theirs.vocab_size, mine.vocab_size);
  same("hidden_size", theirs.hidden_size, mine.hidden_size);
  same("intermediate_size", theirs.intermediate_size, mine.intermediate_size);
  same("num_hidden_layers", theirs.num_hidden_layers, mine.num_hidden_layers);
  same("num_attention_heads", theirs.num_attention_heads, mine.num_attention_heads);
  same("num_key_value_heads", theirs.num_key_value_heads, mine.num_key_value_heads);
  same("head_dim", theirs.head_dim, mine.head_dim);
  same("rms_norm_eps", theirs.rms_norm_eps, mine.rms_norm_eps);
  same("rope_theta", theirs.rope_theta, mine.rope_theta);
  same("tie_word_embeddings", theirs.tie_word_embeddings, mine.tie_word_embeddings);
  same("rope_scaling", theirs.has_rope_scaling, mine.has_rope_scaling);
  if (!mine.has_rope_scaling) return;
  same("rope_scaling.factor", theirs.rope_scaling.factor, mine.rope_scaling.factor);
  same("rope_scaling.low_freq_factor", theirs.rope_scaling.low_freq_factor, mine.rope_scaling.low_freq_factor);
  same("rope_scaling.high_freq_factor", theirs.rope_scaling.high_freq_factor, mine.rope_scaling.high_freq_factor);
  same("rope_scaling.original_max_position_embeddings", theirs.rope_scaling.original_max_position,
       mine.rope_scaling.original_max_position);
}

}  // namespace

void load_llama(const HfDirectory& directory, const Llama& model, ParameterSet& parameters, const Exec& exec) {
  check_same_model(directory, model.config());
  std::vector<ExpectedTensor> expected;
  for (const NamedSlice& slice : model.named_slices()) expected.push_back({slice.name, slice.shape, ""});
  if (model.config().tie_word_embeddings)
    expected.push_back(
        {"lm_head.weight", {model.config().vocab_size, model.config().hidden_size}, "model.embed_tokens.weight"});
  directory.check(expected);
  for (const NamedSlice& slice : model.named_slices())
    directory.read(slice.name, accum_dtype(parameters.dtype()), parameters.master(offset(slice, parameters)));
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
    tensor.data = parameters.compute(offset(slice, parameters));
    tensors.push_back(tensor);
  }
  write_hf_directory(path, config, tensors);
}

}  // namespace xce

#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "src/cli/commands.h"
#include "src/model/llama_io.h"
#include "src/train/run_setup.h"
#include "src/train/sample.h"
#include "src/train/training_state.h"

namespace xce {
namespace {

constexpr int64_t kByteVocabulary = 256;

void check_bytes(const SampleCommand& command, const ModelConfig& model) {
  if (model.vocab_size != kByteVocabulary)
    throw Error(ErrorCode::kUsage,
                str(command.directory, ": --sample needs a byte-level model (vocabulary 256), this one has ",
                    model.vocab_size));
}

void print_text(const SampleCommand& command, const Llama& model, ParameterSet& parameters, const Exec& exec,
                int64_t seq_len) {
  std::vector<int32_t> prompt;
  for (char c : command.prompt) prompt.push_back(static_cast<unsigned char>(c));
  SampleOptions options{
      .count = command.tokens, .seq_len = seq_len, .temperature = command.temperature, .seed = command.seed};
  for (int32_t id : sample(model, parameters, exec, prompt, options)) std::fputc(id, stdout);
  std::fputc('\n', stdout);
}

void sample_from_export(const SampleCommand& command, const Exec& exec) {
  HfDirectory directory(command.directory);
  const HfConfig& config = directory.config();
  check_bytes(command, config.model);
  ParameterSet parameters(config.dtype);
  Llama model(config.model, parameters);
  check_llama(directory, model);  // before memory is taken for what config.json claims
  // Every token costs a pass over the whole window, so it is no longer than the text becomes.
  int64_t text = static_cast<int64_t>(command.prompt.size()) + command.tokens;
  int64_t window = std::min(config.model.max_position_embeddings, text);
  model.prepare(window);
  parameters.allocate();
  load_llama(directory, model, parameters, exec);
  print_text(command, model, parameters, exec, window);
}

void sample_from_checkpoint(const SampleCommand& command) {
  CheckpointReader reader(command.directory);
  Config config = parse_config(read_training_meta(reader).config_yaml, command.directory + "/state.json");
  config.run.threads = command.threads;
  RunSetup setup(config);
  check_bytes(command, setup.model().config());
  setup.allocate();
  load_training_state(reader, setup.step(), setup.parameters(), setup.exec());
  print_text(command, setup.model(), setup.parameters(), setup.exec(), config.train.seq_len);
}

}  // namespace

int run_sample(const SampleCommand& command) {
  if (command.prompt.empty()) throw Error(ErrorCode::kUsage, "--sample needs a --prompt of at least one byte");
  if (std::filesystem::exists(std::filesystem::path(command.directory) / "manifest.json")) {
    sample_from_checkpoint(command);
  } else {
    ThreadPool pool(static_cast<int>(command.threads > 0 ? command.threads : hardware_threads()));
    sample_from_export(command, CpuExec{&pool});
  }
  return 0;
}

}  // namespace xce

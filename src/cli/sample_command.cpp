#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <vector>

#include "src/cli/commands.h"
#include "src/model/llama_io.h"
#include "src/train/run_setup.h"
#include "src/train/sample.h"
#include "src/train/training_state.h"

namespace xce {
namespace {

constexpr int64_t kByteVocabulary = 256;

std::vector<int32_t> prompt_ids(const SampleCommand& command, const ModelConfig& model) {
  if (!command.prompt_ids.empty()) return command.prompt_ids;
  if (model.vocab_size != kByteVocabulary)
    throw Error(ErrorCode::kUsage,
                str(command.directory, ": --prompt is for a byte-level model (vocabulary 256), this one has ",
                    model.vocab_size, "; give --prompt-ids, or let tools/sample_text.sh do so"));
  std::vector<int32_t> ids;
  for (char c : command.prompt) ids.push_back(static_cast<unsigned char>(c));
  return ids;
}

void print_sample(const SampleCommand& command, const Llama& model, ParameterSet& parameters, Device& device,
                  int64_t window) {
  SampleOptions options{
      .count = command.tokens, .seq_len = window, .temperature = command.temperature, .seed = command.seed};
  bool as_ids = command.print_ids || model.config().vocab_size != kByteVocabulary;
  const char* separator = "";
  for (int32_t id : sample(model, parameters, device, prompt_ids(command, model.config()), options)) {
    if (!as_ids) {
      std::fputc(id, stdout);
      continue;
    }
    std::printf("%s%d", separator, id);
    separator = ",";
  }
  std::fputc('\n', stdout);
}

std::unique_ptr<Device> sampling_device(const SampleCommand& command) {
  if (command.device == "cuda") return make_cuda_device();
  return make_cpu_device(static_cast<int>(command.threads > 0 ? command.threads : hardware_threads()));
}

void sample_from_export(const SampleCommand& command, Device& device) {
  HfDirectory directory(command.directory);
  const HfConfig& config = directory.config();
  size_t prompt_tokens = prompt_ids(command, config.model).size();
  ParameterSet parameters(config.dtype);
  Llama model(config.model, parameters);
  check_llama(directory, model);  // before memory is taken for what config.json claims
  // Every token costs a pass over the whole window, so it is no longer than the text becomes.
  int64_t text = static_cast<int64_t>(prompt_tokens) + command.tokens;
  int64_t window = std::min(config.model.max_position_embeddings, text);
  model.prepare(window, device.memory());
  parameters.allocate(device.memory(), ParameterUse::kInference);
  load_llama(directory, model, parameters, device.exec());
  print_sample(command, model, parameters, device, window);
}

void sample_from_checkpoint(const SampleCommand& command) {
  CheckpointReader reader(command.directory);
  Config config = parse_config(read_training_meta(reader).config_yaml, command.directory + "/state.json");
  config.run.threads = command.threads;
  if (!command.device.empty()) config.run.device = command.device == "cuda" ? DeviceKind::kCuda : DeviceKind::kCpu;
  RunSetup setup(config);
  prompt_ids(command, setup.model().config());  // refused before memory is taken
  setup.allocate(InitialWeights::kFromCheckpoint);
  load_training_state(reader, setup.parameters(), setup.device().exec());
  print_sample(command, setup.model(), setup.parameters(), setup.device(), config.train.seq_len);
}

}  // namespace

int run_sample(const SampleCommand& command) {
  if (command.prompt.empty() && command.prompt_ids.empty())
    throw Error(ErrorCode::kUsage, "--sample needs a --prompt of at least one byte, or --prompt-ids");
  if (std::filesystem::exists(std::filesystem::path(command.directory) / "manifest.json")) {
    sample_from_checkpoint(command);
  } else {
    sample_from_export(command, *sampling_device(command));
  }
  return 0;
}

}  // namespace xce

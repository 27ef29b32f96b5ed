// The program's commands; each returns the process's exit status or throws Error.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace xce {

struct TrainCommand {
  std::string config_path;
  std::vector<std::string> overrides;  // section.key=value
  int64_t world = 0;                   // ranks to plan for in a dry run; 0: as started
};
int run_train(const TrainCommand& command);
int run_dry(const TrainCommand& command);           // --dry-run
int run_print_config(const TrainCommand& command);  // --print-config
int run_help_config();                              // --help-config

struct SampleCommand {
  std::string directory;  // a Hugging Face directory, or a checkpoint
  std::string prompt;     // for byte-level models; or
  std::vector<int32_t> prompt_ids;
  bool print_ids = false;  // ids instead of text; models that are not byte-level have nothing else
  int64_t tokens = 400;
  double temperature = 0.8;
  uint64_t seed = 0;
  int64_t threads = 0;  // 0: every core
  std::string device;   // cpu or cuda; empty: a checkpoint's own, the CPU for an export
};
int run_sample(const SampleCommand& command);

}  // namespace xce

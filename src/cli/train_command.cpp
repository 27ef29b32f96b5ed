#include <cstdio>

#include "src/cli/commands.h"
#include "src/train/trainer.h"

namespace xce {
namespace {

constexpr int kStoppedBySignal = 75;

}  // namespace

int run_train(const TrainCommand& command) {
  StopReason reason = train(load_config(command.config_path, command.overrides));
  return reason == StopReason::kSignal ? kStoppedBySignal : 0;
}

int run_dry(const TrainCommand& command) {
  RunSetup setup(load_config(command.config_path, command.overrides), PlanOnly{command.world});
  std::printf("%s\n", setup.describe().c_str());
  return 0;
}

int run_print_config(const TrainCommand& command) {
  std::fputs(config_to_yaml(load_config(command.config_path, command.overrides), true).c_str(), stdout);
  return 0;
}

int run_help_config() {
  for (const ConfigKeyHelp& key : config_help())
    std::printf("%-48s %-10s %-12s %s\n", key.key.c_str(), key.type.c_str(), key.default_value.c_str(),
                key.help.c_str());
  return 0;
}

}  // namespace xce

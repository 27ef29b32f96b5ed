// What a checkpoint holds so that a resumed run continues bit for bit: masters, moments, StepState, the configuration
// and the data's fingerprint. The data order is a function of the step, so there is no loader state.
#pragma once

#include <filesystem>
#include <string>

#include "src/core/param.h"
#include "src/io/checkpoint.h"
#include "src/train/step.h"

namespace xce {

struct TrainingMeta {
  std::string config_yaml;
  uint64_t data_fingerprint = 0;
};

std::filesystem::path save_training_state(const std::filesystem::path& root, int64_t keep, const TrainingMeta& meta,
                                          const Step& step, ParameterSet& parameters);
TrainingMeta read_training_meta(const CheckpointReader& reader);
// Fills masters and moments and returns the state for Step::set_state. A checkpoint whose arrays have other sizes or
// names is kCorrupt.
StepState load_training_state(const CheckpointReader& reader, ParameterSet& parameters, const Exec& exec);

}  // namespace xce

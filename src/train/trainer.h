// The loop of a run: resume, train, validate, save, stop. Its directory holds config.resolved.yaml, metrics.jsonl,
// TensorBoard events, checkpoints/step-<N>/ and at the end export/, a Hugging Face directory.
#pragma once

#include <memory>

#include "src/train/run_setup.h"

namespace xce {

enum class StopReason { kDone, kTimeLimit, kSignal };

// Runs config to its end or to a stop; what it cannot do is an Error, and what was saved before stays.
//   kDone: all steps are trained and exported.  kTimeLimit: train.max_minutes is over; saved and exported.
//   kSignal: SIGINT, SIGTERM or SIGUSR1; saved.
// device: where it runs; null: on what run.device names.
StopReason train(const Config& config, std::unique_ptr<Device> device = nullptr);

}  // namespace xce

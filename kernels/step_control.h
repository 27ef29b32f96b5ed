// The end of a step's control flow, on the device: reads the loss and the gradient's squared norm, decides whether the
// update is applied, computes clip factor and learning rate, and advances the counters. Everything a step changes is in
// StepState.
#pragma once

#include <cstdint>

#include "kernels/base/exec.h"

namespace xce {

// One per run, in device memory; part of the checkpoint.
struct StepState {
  int64_t step = 0;       // attempted steps: the data cursor
  int64_t updates = 0;    // applied updates: Adam's t and the schedule's position
  int64_t skipped = 0;    // steps whose loss or norm was not finite
  double lr = 0;          // of the last attempted step
  double grad_scale = 0;  // the clip factor of the last attempted step, in (0, 1]
  double grad_norm = 0;   // before clipping
  double loss = 0;
  int32_t apply = 0;  // 1: AdamW updates in this step; 0: it must leave every bit as it was
  int32_t pad = 0;
};

enum class ScheduleKind : int32_t { kConstant = 0, kLinear = 1, kCosine = 2, kWsd = 3 };

// Learning rate of update u (0-based) of total: warm-up rises linearly, lr * (u + 1) / warmup for u < warmup; then
//   constant: lr;  linear: from lr to min_lr at total;  cosine: half a cosine from lr to min_lr at total;
//   wsd (warm-up, stable, decay): lr until total - decay, then linear to min_lr at total.  Past total: min_lr
//   (constant: lr).
struct Schedule {
  ScheduleKind kind = ScheduleKind::kCosine;
  double lr = 1e-3, min_lr = 0;
  int64_t warmup = 0, decay = 0, total = 1;
};
double learning_rate(const Schedule& schedule, int64_t update);

struct StepControl {
  const double* loss;   // () the step's mean loss
  const double* norm2;  // () squared norm of the whole gradient
  StepState* state;     // () in and out
  Schedule schedule;
  double max_norm = 0;  // clip the norm to this; 0: no clipping
};

void launch(const CpuExec& exec, const StepControl& args);

}  // namespace xce

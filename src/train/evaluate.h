// The loss over a validation set: every target once, in fixed windows, so two evaluations of the same weights agree.
#pragma once

#include "src/data/loader.h"
#include "src/train/step.h"

namespace xce {

// Summed loss in nats over `max_windows` windows spread evenly over the set; 0: all of them.
EvalResult evaluate(Step& step, const ValidationWindows& windows, int64_t max_windows);

}  // namespace xce

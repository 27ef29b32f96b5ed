// What a person sees of a running training: on a terminal a bar with the time left, otherwise a line every few steps; a
// line also for every validation.
#pragma once

#include <cstdint>
#include <string>

#include "src/train/metrics.h"

namespace xce {

// "step 150/1500  loss 2.3456  norm 0.812  lr 4.00e-03  45.2 ms  45312 tok/s  mem 212.3 MiB  data 0.1%", with MFU,
// skipped steps and validation where there are any.
std::string step_line(const StepRecord& record, int64_t steps);
// "[=====>      ]  41%  step 615/1500  loss 2.3456  45312 tok/s  eta 0:40"; the bar takes what the text leaves of
// columns.
std::string progress_bar(const StepRecord& record, int64_t steps, double eta_s, int columns);
std::string format_duration(double seconds);  // "0:40", "1:02:03", "3d 04:05:06"
std::string format_memory(int64_t bytes);     // "212.3 MiB"

struct ProgressOptions {
  int64_t steps = 0;       // of the whole run
  int64_t first_step = 0;  // trained before this process
  int64_t every = 1;       // steps from line to line
  double max_minutes = 0;  // the run ends then if not before; 0: no limit
};

class Progress {
 public:
  explicit Progress(const ProgressOptions& options) : options_(options) {}
  ~Progress();  // takes the bar away

  void show(const StepRecord& record);

 private:
  double eta_s(const StepRecord& record) const;

  ProgressOptions options_;
  double mean_ms_ = 0;     // of a step, recent ones weigh more
  double elapsed_ms_ = 0;  // of this process's steps
  double drawn_ms_ = 0;    // elapsed_ms_ when the bar was drawn last
};

}  // namespace xce

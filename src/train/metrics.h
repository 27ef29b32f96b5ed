// What a step reports, and the run's metrics.jsonl: one JSON object per line, appended as steps end. Numbers are
// printed so that they read back to the same bits; NaN and infinity, which JSON lacks, become null and read back as
// NaN.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "src/core/file.h"

namespace xce {

struct StepRecord {
  int64_t step = 0;    // 1 after the first
  int64_t tokens = 0;  // seen by the whole run so far
  double loss = 0, grad_norm = 0, lr = 0;
  double time_ms = 0, tokens_per_s = 0;
  std::optional<double> mfu;  // share of the device's peak, in [0, 1]; only where the peak is known
  int64_t memory_bytes = 0;
  double data_wait = 0;                           // share of the step's time spent waiting for data
  int64_t skipped = 0;                            // steps of the run whose update was skipped so far
  std::optional<double> val_loss, bits_per_byte;  // where measured
};

std::string to_json(const StepRecord& record);  // one line, without its end
// The records of a metrics file; a torn last line is left out. Error(kCorrupt) names file and line of any other damage.
std::vector<StepRecord> read_metrics(const fs::path& path);

class MetricsWriter {
 public:
  // Opens path, creating it if need be, and first cuts what a run that goes on after `resumed_step` is going to write
  // again: lines of later steps and a torn last line. 0: a new run, the file starts empty. Error(kDisk),
  // Error(kCorrupt).
  MetricsWriter(const fs::path& path, int64_t resumed_step);
  ~MetricsWriter();
  MetricsWriter(const MetricsWriter&) = delete;
  MetricsWriter& operator=(const MetricsWriter&) = delete;

  void append(const StepRecord& record);  // reaches the system at once: it outlives the process
  void sync();  // reaches the disk; call before a checkpoint that a resumed run may start from

 private:
  fs::path path_;
  int fd_ = -1;
};

}  // namespace xce

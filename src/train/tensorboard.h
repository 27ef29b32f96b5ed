// Scalars for TensorBoard, without TensorFlow: an event file is a sequence of TFRecords (length, masked CRC-32C of it,
// data, masked CRC-32C of that), each an Event protobuf, of which four fields are needed.
#pragma once

#include <cstdint>
#include <string>

#include "src/core/file.h"
#include "src/train/metrics.h"

namespace xce {

class TensorboardWriter {
 public:
  // Begins a new "events.out.tfevents.*" file in an existing directory. A run that goes on after resumed_step > 0 tells
  // TensorBoard to forget later steps of the earlier files. Error(kDisk).
  TensorboardWriter(const fs::path& directory, int64_t resumed_step);
  ~TensorboardWriter();
  TensorboardWriter(const TensorboardWriter&) = delete;
  TensorboardWriter& operator=(const TensorboardWriter&) = delete;

  // Tags loss, grad_norm, lr, tokens_per_s, and where present mfu, val_loss, bits_per_byte; reaches the file at once.
  void append(const StepRecord& record);

  const fs::path& path() const { return path_; }

 private:
  void write_event(int64_t step, const std::string& payload);

  fs::path path_;
  int fd_ = -1;
};

}  // namespace xce

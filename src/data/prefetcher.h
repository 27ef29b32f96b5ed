// A thread that prepares the batches of coming steps in a small ring while the present one computes.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "src/data/loader.h"

namespace xce {

struct Batch {
  int64_t step = -1;
  int64_t samples = 0;           // real rows; rows past them have ignored targets
  std::vector<int32_t> tokens;   // (rows, seq_len)
  std::vector<int32_t> targets;  // (rows, seq_len)
};

// Step s trains samples [s * global_batch, (s + 1) * global_batch); this rank takes `samples` of them from first_sample
// on, in `rows` rows. Ranks with fewer samples than rows are padded.
struct BatchPlan {
  int64_t global_batch = 1;
  int64_t first_sample = 0, samples = 1;
  int64_t rows = 1;
};

// One consumer. Batches come in the order of steps; an error of the source is rethrown by next().
class Prefetcher {
 public:
  // The loader must outlive the prefetcher. depth: batches held, >= 2.
  Prefetcher(const Loader& loader, const BatchPlan& plan, int64_t first_step, int depth = 3);
  ~Prefetcher();
  Prefetcher(const Prefetcher&) = delete;
  Prefetcher& operator=(const Prefetcher&) = delete;

  // The next step's batch, valid until the call after; waits for it if it is not ready.
  const Batch& next();
  double last_wait_ms() const { return last_wait_ms_; }    // of the last next()
  double total_wait_ms() const { return total_wait_ms_; }  // of all of them

 private:
  void produce();

  const Loader& loader_;
  const BatchPlan plan_;
  const int64_t first_step_;
  std::vector<Batch> ring_;  // batch number i lies in slot i % ring_.size()
  double last_wait_ms_ = 0, total_wait_ms_ = 0;

  // Under mutex_: batches [released_, produced_) are ready or lent, produced_ - released_ <= ring_.size().
  std::mutex mutex_;
  std::condition_variable changed_;
  int64_t produced_ = 0, taken_ = 0, released_ = 0;
  bool stop_ = false;
  std::exception_ptr error_;
  std::thread thread_;
};

}  // namespace xce

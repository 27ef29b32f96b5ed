#include "src/data/prefetcher.h"

#include <chrono>

#include "kernels/base/check.h"

namespace xce {

Prefetcher::Prefetcher(const Loader& loader, const BatchPlan& plan, int64_t first_step, int depth)
    : loader_(loader), plan_(plan), first_step_(first_step) {
  XCE_CHECK(first_step >= 0, "a first step >= 0", first_step);
  XCE_CHECK(depth >= 2, "a ring of two batches at least", depth);
  XCE_CHECK(plan.first_sample >= 0 && plan.samples >= 0 && plan.first_sample + plan.samples <= plan.global_batch,
            str("a rank's samples within the global batch of ", plan.global_batch),
            str(plan.first_sample, " + ", plan.samples));
  XCE_CHECK(plan.rows >= plan.samples, str("rows for ", plan.samples, " samples"), plan.rows);
  ring_.resize(depth);
  for (Batch& batch : ring_) {
    batch.samples = plan.samples;
    batch.tokens.resize(plan.rows * loader.seq_len());
    batch.targets.resize(plan.rows * loader.seq_len());
  }
  thread_ = std::thread([this] { produce(); });
}

Prefetcher::~Prefetcher() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Prefetcher::produce() {
  const auto depth = static_cast<int64_t>(ring_.size());
  for (int64_t number = 0;; ++number) {
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return stop_ || number - released_ < depth; });
      if (stop_) return;
    }
    // Outside the lock: the slot belongs to this thread until produced_ passes it.
    Batch& batch = ring_[number % depth];
    std::exception_ptr error;
    try {
      batch.step = first_step_ + number;
      loader_.fill_padded(batch.step * plan_.global_batch + plan_.first_sample, plan_.samples,
                          plan_.rows - plan_.samples, batch.tokens.data(), batch.targets.data());
    } catch (...) {
      error = std::current_exception();
    }
    {
      std::lock_guard lock(mutex_);
      if (error)
        error_ = error;
      else
        produced_ = number + 1;
    }
    changed_.notify_all();
    if (error) return;
  }
}

const Batch& Prefetcher::next() {
  auto start = std::chrono::steady_clock::now();
  std::unique_lock lock(mutex_);
  released_ = taken_;
  changed_.notify_all();
  changed_.wait(lock, [&] { return produced_ > taken_ || error_; });
  last_wait_ms_ = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  total_wait_ms_ += last_wait_ms_;
  if (produced_ == taken_) std::rethrow_exception(error_);
  return ring_[taken_++ % static_cast<int64_t>(ring_.size())];
}

}  // namespace xce

// The CPU's threads: a fixed pool, contiguous static partition, so that the same thread count gives the same bits.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>

#include "kernels/base/exec.h"

namespace xce {

class ThreadPool {
 public:
  explicit ThreadPool(int threads);  // the caller is thread 0, so threads - 1 workers are started; threads >= 1
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return size_; }
  // Calls fn(thread) once on each of the size() threads and returns when all are done; the first exception is rethrown.
  // Not reentrant, one caller at a time. Workers spin for a few tens of microseconds, then sleep.
  void run(const std::function<void(int thread)>& fn);

 private:
  struct State;
  std::unique_ptr<State> state_;
  int size_;
};

int hardware_threads();  // the CPUs this process may use (its affinity mask)

struct Range {
  int64_t begin, end;
};
// Part `index` of `parts` near-equal contiguous parts of [0, n).
inline Range partition(int64_t n, int64_t parts, int64_t index) {
  int64_t base = n / parts, extra = n % parts;
  int64_t begin = index * base + std::min(index, extra);
  return {begin, begin + base + (index < extra ? 1 : 0)};
}

// fn(begin, end, thread) on each thread's contiguous part of [0, n); each part holds at least `grain`.
template <class F>
void parallel_for(const CpuExec& exec, int64_t n, int64_t grain, F&& fn) {
  if (n <= 0) return;
  int64_t parts = std::clamp<int64_t>(n / std::max<int64_t>(grain, 1), 1, exec.pool->size());
  if (parts == 1) return fn(int64_t{0}, n, 0);
  exec.pool->run([&](int thread) {
    if (thread >= parts) return;
    Range part = partition(n, parts, thread);
    fn(part.begin, part.end, thread);
  });
}

}  // namespace xce

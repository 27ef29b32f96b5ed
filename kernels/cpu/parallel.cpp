#include "kernels/cpu/parallel.h"

#include <immintrin.h>
#include <sched.h>

#include <atomic>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/base/check.h"

namespace xce {
namespace {

// Spinning covers the gap between two ops of a step (microseconds); sleeping frees the core for everything longer.
constexpr int kSpins = 20000;

template <class Ready, class Sleep>
void wait_until(Ready&& ready, Sleep&& sleep) {
  for (int i = 0; i < kSpins; ++i) {
    if (ready()) return;
    if (i % 32 == 31)
      sched_yield();  // where other processes or more threads than cores want this core, waiting costs microseconds
    else
      _mm_pause();
  }
  while (!ready()) sleep();
}

}  // namespace

// Invariants: 1. `job` is valid from a bump of `generation` until `running` is 0. 2. Only run() bumps `generation`, and
// only when `running` is 0. 3. A worker touches `job` only after it saw the new generation, and decrements `running`
// last.
struct ThreadPool::State {
  std::atomic<uint32_t> generation{0};
  std::atomic<int> running{0};
  std::atomic<bool> stop{false};
  const std::function<void(int)>* job = nullptr;
  std::mutex error_mutex;
  std::exception_ptr error;
  std::vector<std::thread> workers;

  void call(int thread) noexcept {
    try {
      (*job)(thread);
    } catch (...) {
      std::lock_guard lock(error_mutex);
      if (!error) error = std::current_exception();
    }
  }
  void work(int thread) {
    uint32_t seen = 0;
    for (;;) {
      wait_until([&] { return generation.load(std::memory_order_acquire) != seen; },
                 [&] { generation.wait(seen, std::memory_order_acquire); });
      ++seen;
      if (stop.load(std::memory_order_relaxed)) return;
      call(thread);
      if (running.fetch_sub(1, std::memory_order_acq_rel) == 1) running.notify_one();
    }
  }
  void finish() {
    stop = true;
    start(0);
    for (std::thread& worker : workers) worker.join();
  }
  void start(int count) {
    running.store(count, std::memory_order_relaxed);
    generation.fetch_add(1, std::memory_order_release);
    generation.notify_all();
  }
};

ThreadPool::ThreadPool(int threads) : state_(std::make_unique<State>()), size_(threads) {
  XCE_CHECK(threads >= 1, "ThreadPool threads >= 1", threads);
  try {
    for (int t = 1; t < threads; ++t) state_->workers.emplace_back([this, t] { state_->work(t); });
  } catch (const std::system_error& error) {
    size_t started = state_->workers.size();
    state_->finish();
    throw Error(ErrorCode::kRuntime, str("could start ", started, " of ", threads - 1, " threads: ", error.what()));
  }
}

ThreadPool::~ThreadPool() {
  state_->finish();
}

void ThreadPool::run(const std::function<void(int)>& fn) {
  State& state = *state_;
  state.job = &fn;
  state.start(size_ - 1);
  state.call(0);
  wait_until([&] { return state.running.load(std::memory_order_acquire) == 0; },
             [&] {
               int left = state.running.load(std::memory_order_acquire);
               if (left != 0) state.running.wait(left, std::memory_order_acquire);
             });
  if (state.error) std::rethrow_exception(std::exchange(state.error, nullptr));
}

int hardware_threads() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return std::max(1, CPU_COUNT(&set));
  return std::max(1u, std::thread::hardware_concurrency());
}

}  // namespace xce

// The thread pool and the partition of work.
#include "kernels/cpu/parallel.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <atomic>
#include <stdexcept>
#include <thread>
#include <vector>

#include "kernels/base/check.h"

namespace xce {
namespace {

TEST(Partition, CoversEachIndexOnceInOrderWithNearEqualParts) {
  for (int64_t n : {0, 1, 2, 7, 31, 127, 1025})
    for (int64_t parts : {1, 2, 3, 8, 31}) {
      int64_t at = 0, smallest = n + 1, largest = -1;
      for (int64_t i = 0; i < parts; ++i) {
        Range range = partition(n, parts, i);
        EXPECT_EQ(range.begin, at);
        at = range.end;
        smallest = std::min(smallest, range.end - range.begin);
        largest = std::max(largest, range.end - range.begin);
      }
      EXPECT_EQ(at, n);
      EXPECT_LE(largest - smallest, 1);
      EXPECT_GE(smallest, 0);
    }
}

TEST(Partition, SizesBeyond32Bits) {
  int64_t n = (int64_t{1} << 40) + 1;
  EXPECT_EQ(partition(n, 2, 0).end, (int64_t{1} << 39) + 1);
  EXPECT_EQ(partition(n, 2, 1).end, n);
}

TEST(ThreadPool, CallsEachThreadOnceTheCallerAsThreadZero) {
  for (int size : {1, 2, 3, 5}) {
    ThreadPool pool(size);
    EXPECT_EQ(pool.size(), size);
    std::vector<std::atomic<int>> calls(size);
    std::vector<std::thread::id> ids(size);
    pool.run([&](int thread) {
      calls[thread]++;
      ids[thread] = std::this_thread::get_id();
    });
    EXPECT_EQ(ids[0], std::this_thread::get_id());
    for (int t = 0; t < size; ++t) {
      EXPECT_EQ(calls[t], 1) << t;
      for (int u = 0; u < t; ++u) EXPECT_NE(ids[t], ids[u]);
    }
  }
}

TEST(ThreadPool, ManyQuickRunsAreAllDoneOnReturn) {
  constexpr int64_t kRuns = 1000;
  ThreadPool pool(3);
  std::vector<int64_t> sums(3, 0);  // plain values: the pool itself must order the accesses
  for (int64_t run = 1; run <= kRuns; ++run) {
    pool.run([&](int thread) { sums[thread] += run; });
    if (sums[0] != sums[1] || sums[1] != sums[2]) FAIL() << "run " << run << " returned before its threads were done";
  }
  EXPECT_EQ(sums[2], kRuns * (kRuns + 1) / 2);
}

TEST(ThreadPool, WakesSleepingWorkers) {
  ThreadPool pool(3);
  for (int run = 0; run < 5; ++run) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    std::atomic<int> calls{0};
    pool.run([&](int) { calls++; });
    EXPECT_EQ(calls, 3);
  }
}

TEST(ThreadPool, WaitsForAWorkerThatTakesLong) {
  ThreadPool pool(2);
  int done = 0;
  pool.run([&](int thread) {
    if (thread == 0) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    done = 1;
  });
  EXPECT_EQ(done, 1);
}

TEST(ThreadPool, AnExceptionOfAnyThreadReachesTheCallerAfterAllAreDone) {
  ThreadPool pool(3);
  for (int thrower = 0; thrower < 3; ++thrower) {
    std::atomic<int> finished{0};
    try {
      pool.run([&](int thread) {
        if (thread == thrower) throw std::runtime_error(str("from ", thread));
        finished++;
      });
      ADD_FAILURE() << "no exception";
    } catch (const std::runtime_error& error) {
      EXPECT_EQ(error.what(), str("from ", thrower));
    }
    EXPECT_EQ(finished, 2);
    std::atomic<int> calls{0};
    pool.run([&](int) { calls++; });  // the pool stays usable, and the error is not reported twice
    EXPECT_EQ(calls, 3);
  }
}

TEST(ThreadPool, RefusesNoThreads) {
  EXPECT_THROW(ThreadPool(0), Error);
  EXPECT_THROW(ThreadPool(-1), Error);
}

TEST(ParallelFor, VisitsEachIndexOnceInPartsOfAtLeastTheGrain) {
  ThreadPool pool(3);
  CpuExec exec{&pool};
  for (int64_t n : {1, 7, 31, 127, 1025})
    for (int64_t grain : {0, 1, 8, 100, 5000}) {
      std::vector<std::atomic<int>> visits(n);
      std::atomic<int> small_parts{0};
      parallel_for(exec, n, grain, [&](int64_t begin, int64_t end, int thread) {
        EXPECT_TRUE(thread >= 0 && thread < 3);
        if (end - begin < std::min(grain, n)) small_parts++;
        for (int64_t i = begin; i < end; ++i) visits[i]++;
      });
      EXPECT_EQ(small_parts, 0) << "n " << n << " grain " << grain;
      for (int64_t i = 0; i < n; ++i) EXPECT_EQ(visits[i], 1) << i;
    }
}

TEST(ParallelFor, NothingToDoCallsNothing) {
  ThreadPool pool(2);
  parallel_for(CpuExec{&pool}, 0, 1, [](int64_t, int64_t, int) { FAIL(); });
}

TEST(HardwareThreads, AtLeastOne) {
  EXPECT_GE(hardware_threads(), 1);
}

// A limit on the address space refuses the stacks of so many threads; those that had started are joined.
TEST(ThreadPool, RefusedThreadsAreAnError) {
#if !defined(__SANITIZE_ADDRESS__)
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_AS, &before), 0);
  rlimit small = before;
  small.rlim_cur = rlim_t{1} << 30;
  ASSERT_EQ(::setrlimit(RLIMIT_AS, &small), 0);
  std::string message;
  try {
    ThreadPool pool(4096);
  } catch (const Error& error) {
    message = error.what();
  }
  ASSERT_EQ(::setrlimit(RLIMIT_AS, &before), 0);
  EXPECT_NE(message.find("of 4095 threads"), std::string::npos) << message;
#else
  GTEST_SKIP() << "AddressSanitizer's own memory exceeds any such limit";
#endif
}

}  // namespace
}  // namespace xce

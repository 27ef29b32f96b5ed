#include "src/data/prefetcher.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "tests/support/errors.h"

namespace xce {
namespace {

// Uniform ids behind a delay; from a number of reads on it fails.
class SlowSource : public TokenSource {
 public:
  SlowSource(int delay_ms, int good_reads) : delay_ms_(delay_ms), good_reads_(good_reads) {}
  int64_t size() const override { return 4000; }
  int64_t vocab_size() const override { return 50; }
  void read(int64_t offset, std::span<int32_t> out) const override {
    if (good_reads_-- <= 0) throw Error(ErrorCode::kCorrupt, "the source broke");
    std::this_thread::sleep_for(std::chrono::milliseconds(delay_ms_));
    uniform_source(50, 4000, 1)->read(offset, out);
  }
  uint64_t fingerprint() const override { return 0; }
  std::string describe() const override { return "slow"; }

 private:
  int delay_ms_;
  mutable std::atomic<int> good_reads_;
};

TEST(Prefetcher, BatchesOfEveryStepInOrder) {
  Loader loader(uniform_source(50, 4000, 1), 8, 3);
  Prefetcher prefetcher(loader, {.global_batch = 7, .first_sample = 2, .samples = 3, .rows = 4}, 5);
  std::vector<int32_t> tokens(32), targets(32);
  for (int64_t step = 5; step < 205; ++step) {
    const Batch& batch = prefetcher.next();
    ASSERT_EQ(batch.step, step);
    ASSERT_EQ(batch.samples, 3);
    loader.fill_padded(step * 7 + 2, 3, 1, tokens.data(), targets.data());
    ASSERT_EQ(batch.tokens, tokens);
    ASSERT_EQ(batch.targets, targets);
  }
}

// Two ranks' rows are one rank's rows.
TEST(Prefetcher, RanksShareTheGlobalBatch) {
  Loader loader(uniform_source(50, 4000, 1), 8, 3);
  Prefetcher whole(loader, {.global_batch = 6, .first_sample = 0, .samples = 6, .rows = 6}, 0);
  Prefetcher low(loader, {.global_batch = 6, .first_sample = 0, .samples = 4, .rows = 4}, 0);
  Prefetcher high(loader, {.global_batch = 6, .first_sample = 4, .samples = 2, .rows = 2}, 0);
  for (int step = 0; step < 20; ++step) {
    std::vector<int32_t> joined = low.next().targets;
    const Batch& rest = high.next();
    joined.insert(joined.end(), rest.targets.begin(), rest.targets.end());
    EXPECT_EQ(whole.next().targets, joined);
  }
}

TEST(Prefetcher, TheLentBatchIsLeftAlone) {
  Loader loader(std::make_shared<SlowSource>(0, 1 << 30), 8, 3);
  Prefetcher prefetcher(loader, {.global_batch = 2, .first_sample = 0, .samples = 2, .rows = 2}, 0, 2);
  const Batch& batch = prefetcher.next();
  Batch copy = batch;
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  EXPECT_EQ(batch.step, 0);
  EXPECT_EQ(batch.tokens, copy.tokens);
}

TEST(Prefetcher, ReportsTheWait) {
  Loader loader(std::make_shared<SlowSource>(150, 1 << 30), 8, 3);
  Prefetcher prefetcher(loader, {.global_batch = 1, .first_sample = 0, .samples = 1, .rows = 1}, 0);
  prefetcher.next();
  double first = prefetcher.last_wait_ms();
  EXPECT_GT(first, 30);
  std::this_thread::sleep_for(std::chrono::milliseconds(450));  // both next batches are ready then
  prefetcher.next();
  EXPECT_LT(prefetcher.last_wait_ms(), 100);
  EXPECT_DOUBLE_EQ(prefetcher.total_wait_ms(), first + prefetcher.last_wait_ms());
}

TEST(Prefetcher, ErrorsArriveAfterTheGoodBatches) {
  Loader loader(std::make_shared<SlowSource>(0, 5), 8, 3);
  Prefetcher prefetcher(loader, {.global_batch = 2, .first_sample = 0, .samples = 2, .rows = 2}, 0);
  prefetcher.next();
  prefetcher.next();
  for (int i = 0; i < 2; ++i)
    EXPECT_TRUE(test::throws_error(ErrorCode::kCorrupt, {"the source broke"}, [&] { prefetcher.next(); }));
}

TEST(Prefetcher, RefusesBadPlans) {
  Loader loader(uniform_source(50, 4000, 1), 8, 3);
  auto start = [&](const BatchPlan& plan) { Prefetcher(loader, plan, 0); };
  EXPECT_TRUE(test::throws_error(ErrorCode::kRuntime, {"global batch of 4"},
                                 [&] { start({.global_batch = 4, .first_sample = 3, .samples = 2, .rows = 2}); }));
  EXPECT_TRUE(test::throws_error(ErrorCode::kRuntime, {"rows for 2"},
                                 [&] { start({.global_batch = 4, .first_sample = 0, .samples = 2, .rows = 1}); }));
}

}  // namespace
}  // namespace xce

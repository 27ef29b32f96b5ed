#include "src/data/loader.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <vector>

#include "tests/support/errors.h"

namespace xce {
namespace {

using test::throws_error;

// The id at a position is the position, so that a batch shows where it was cut.
class CountingSource : public TokenSource {
 public:
  explicit CountingSource(int64_t size) : size_(size) {}
  int64_t size() const override { return size_; }
  int64_t vocab_size() const override { return size_; }
  void read(int64_t offset, std::span<int32_t> out) const override {
    check_read_range(*this, offset, out.size());
    std::iota(out.begin(), out.end(), static_cast<int32_t>(offset));
  }
  uint64_t fingerprint() const override { return size_; }
  std::string describe() const override { return "counting"; }

 private:
  int64_t size_;
};

Loader make_loader(int64_t size, int64_t seq_len, uint64_t seed = 1) {
  return {std::make_shared<CountingSource>(size), seq_len, seed};
}

TEST(KeyedPermutation, IsABijectionOfEverySize) {
  for (uint64_t n : {1u, 2u, 3u, 4u, 5u, 15u, 16u, 17u, 1000u, 4097u}) {
    for (uint64_t key : {0u, 1u, 99u}) {
      KeyedPermutation order(n, key);
      std::vector<bool> seen(n);
      for (uint64_t i = 0; i < n; ++i) {
        uint64_t to = order(i);
        ASSERT_LT(to, n);
        ASSERT_FALSE(seen[to]) << n << " " << key;
        seen[to] = true;
      }
    }
  }
  EXPECT_LT(KeyedPermutation(uint64_t{1} << 62, 5)(12345), uint64_t{1} << 62);
}

// Positions must be even over keys, and neighbours must not stay neighbours.
TEST(KeyedPermutation, Mixes) {
  constexpr uint64_t kN = 10;
  std::vector<int> counts(kN * kN);
  for (uint64_t key = 0; key < 10000; ++key) {
    KeyedPermutation order(kN, key);
    for (uint64_t i = 0; i < kN; ++i) ++counts[i * kN + order(i)];
  }
  for (int count : counts) EXPECT_NEAR(count, 1000, 180);  // 6 standard deviations
  KeyedPermutation order(1000, 7);
  int neighbours = 0;
  for (uint64_t i = 0; i + 1 < 1000; ++i) neighbours += order(i) + 1 == order(i + 1);
  EXPECT_LE(neighbours, 8);  // 1 expected
}

TEST(Loader, WindowsAreConsecutiveTokensAndTheirSuccessors) {
  Loader loader = make_loader(1000, 16);
  std::vector<int32_t> tokens(5 * 16, -1), targets(5 * 16, -1);
  loader.fill(3, 5, tokens.data(), targets.data());
  for (int64_t row = 0; row < 5; ++row)
    for (int64_t t = 0; t < 16; ++t) {
      EXPECT_EQ(tokens[row * 16 + t], loader.window_begin(3 + row) + t);
      EXPECT_EQ(targets[row * 16 + t], tokens[row * 16 + t] + 1);
    }
}

TEST(Loader, EachWindowOncePerEpochAndOnlyTheTailIsLeft) {
  for (int64_t size : {33, 48, 49, 100, 1000, 1023}) {
    Loader loader = make_loader(size, 16);
    int64_t samples = loader.samples_per_epoch();
    ASSERT_GE(samples, 1);
    for (int64_t epoch : {0, 1, 7}) {
      std::vector<int> used_as_target(size);
      for (int64_t i = 0; i < samples; ++i) {
        int64_t begin = loader.window_begin(epoch * samples + i);
        ASSERT_LE(begin + 17, size);
        for (int64_t t = 1; t <= 16; ++t) ++used_as_target[begin + t];
      }
      int64_t used = std::count(used_as_target.begin(), used_as_target.end(), 1);
      EXPECT_EQ(used, samples * 16) << "a token was a target twice";
      EXPECT_LT(size - used, 2 * 16) << "more than the tail was left out";
      auto first = std::find(used_as_target.begin(), used_as_target.end(), 1);
      EXPECT_EQ(std::count(first, first + used, 1), used) << "a gap within the epoch";
    }
  }
}

TEST(Loader, OrderDoesNotDependOnHowItIsAsked) {
  Loader loader = make_loader(5000, 8);
  std::vector<int32_t> at_once(64 * 8), targets_at_once(64 * 8), one(8), one_target(8);
  int64_t first = loader.samples_per_epoch() - 30;  // across the end of an epoch
  loader.fill(first, 64, at_once.data(), targets_at_once.data());
  Loader again = make_loader(5000, 8);
  for (int64_t i = 63; i >= 0; --i) {
    again.fill(first + i, 1, one.data(), one_target.data());
    EXPECT_TRUE(std::equal(one.begin(), one.end(), at_once.begin() + i * 8));
    EXPECT_TRUE(std::equal(one_target.begin(), one_target.end(), targets_at_once.begin() + i * 8));
  }
}

TEST(Loader, SeedsAndEpochsDiffer) {
  Loader a = make_loader(5000, 8, 1), b = make_loader(5000, 8, 2);
  int64_t samples = a.samples_per_epoch(), same_seed = 0, same_epoch = 0;
  std::set<int64_t> shifts;
  for (int64_t i = 0; i < samples; ++i) {
    same_seed += a.window_begin(i) / 8 == b.window_begin(i) / 8;
    same_epoch += a.window_begin(i) / 8 == a.window_begin(samples + i) / 8;
  }
  EXPECT_LT(same_seed, 12);  // 1 expected
  EXPECT_LT(same_epoch, 12);
  for (int64_t epoch = 0; epoch < 100; ++epoch) shifts.insert(a.window_begin(epoch * samples) % 8);
  EXPECT_EQ(shifts.size(), 8u);
}

TEST(Loader, ShortSources) {
  Loader loader = make_loader(17, 16);
  EXPECT_EQ(loader.samples_per_epoch(), 1);
  EXPECT_EQ(loader.window_begin(0), 0);
  std::set<int64_t> begins;
  Loader longer = make_loader(20, 16);
  for (int64_t i = 0; i < 100; ++i) begins.insert(longer.window_begin(i));
  EXPECT_EQ(begins, (std::set<int64_t>{0, 1, 2, 3}));
  EXPECT_TRUE(
      throws_error(ErrorCode::kUsage, {"counting", "16 tokens", "sequence length of 16"}, [] { make_loader(16, 16); }));
  EXPECT_TRUE(throws_error(ErrorCode::kRuntime, {"sample", "-1"}, [&] { loader.window_begin(-1); }));
}

TEST(Loader, PaddingIsIgnored) {
  Loader loader = make_loader(1000, 4);
  std::vector<int32_t> tokens(12, -7), targets(12, -7), want(4), want_targets(4);
  loader.fill_padded(9, 1, 2, tokens.data(), targets.data());
  loader.fill(9, 1, want.data(), want_targets.data());
  EXPECT_TRUE(std::equal(want.begin(), want.end(), tokens.begin()));
  EXPECT_TRUE(std::equal(want_targets.begin(), want_targets.end(), targets.begin()));
  EXPECT_EQ(std::count(tokens.begin() + 4, tokens.end(), 0), 8);
  EXPECT_EQ(std::count(targets.begin() + 4, targets.end(), kIgnoreTarget), 8);
}

TEST(ValidationWindows, EveryTargetOnce) {
  for (int64_t size : {2, 8, 9, 10, 16, 17, 18, 100}) {
    ValidationWindows windows(std::make_shared<CountingSource>(size), 8);
    int64_t rows = windows.count() + 2;  // past the end too
    std::vector<int32_t> tokens(rows * 8, -7), targets(rows * 8, -7);
    windows.fill(0, rows, tokens.data(), targets.data());
    int32_t expected = 1;
    int64_t ignored = 0;
    for (size_t i = 0; i < targets.size(); ++i) {
      if (targets[i] == kIgnoreTarget) {
        EXPECT_EQ(tokens[i], 0);
        ++ignored;
      } else {
        EXPECT_EQ(targets[i], expected++);
        EXPECT_EQ(tokens[i], targets[i] - 1);
      }
    }
    EXPECT_EQ(expected, size);
    EXPECT_EQ(windows.targets(), size - 1);
    EXPECT_EQ(ignored, rows * 8 - (size - 1));
    EXPECT_EQ(windows.targets_in(0, rows), size - 1);
    EXPECT_EQ(windows.targets_in(windows.count(), 2), 0);
    EXPECT_GT(windows.targets_in(windows.count() - 1, 1), 0);
  }
  EXPECT_TRUE(throws_error(ErrorCode::kUsage, {"counting", "two tokens"},
                           [] { ValidationWindows(std::make_shared<CountingSource>(1), 8); }));
}

}  // namespace
}  // namespace xce

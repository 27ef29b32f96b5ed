#include "src/core/hash.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

namespace xce {
namespace {

// The figures of `xxhsum -H64`: known answers of the reference implementation.
TEST(Xxh64, KnownAnswers) {
  EXPECT_EQ(hex64(xxh64("", 0)), "ef46db3751d8e999");
  EXPECT_EQ(hex64(xxh64("a", 1)), "d24ec4f1a98c6e5b");
  EXPECT_EQ(hex64(xxh64("abc", 3)), "44bc2cf5ad770999");
  std::string text = "Nobody inspects the spammish repetition";  // 39 bytes: lanes and every kind of tail
  EXPECT_EQ(hex64(xxh64(text.data(), text.size())), "fbcea83c8a378bf1");
}

TEST(Xxh64, PiecesGiveTheWhole) {
  std::vector<unsigned char> data(1000);
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<unsigned char>(i * 37 + i / 7);
  for (size_t piece : {1u, 3u, 31u, 32u, 33u, 500u}) {
    Xxh64 hash(5);
    for (size_t at = 0; at < data.size(); at += piece) hash.update(data.data() + at, std::min(piece, data.size() - at));
    EXPECT_EQ(hash.digest(), xxh64(data.data(), data.size(), 5)) << piece;
  }
}

TEST(Xxh64, EveryByteCounts) {
  std::vector<unsigned char> data(97, 7);
  std::set<uint64_t> seen{xxh64(data.data(), data.size())};
  for (size_t i = 0; i < data.size(); ++i) {
    data[i] ^= 1;
    seen.insert(xxh64(data.data(), data.size()));
    data[i] ^= 1;
  }
  EXPECT_EQ(seen.size(), data.size() + 1);
}

TEST(Mix64, PairsAreOrderedAndSpread) {
  EXPECT_NE(mix64(1, 2), mix64(2, 1));
  std::vector<int> buckets(16);
  for (uint64_t i = 0; i < 16000; ++i) ++buckets[scale_to(mix64(42, i), 16)];
  for (int count : buckets) EXPECT_NEAR(count, 1000, 150);  // 5 standard deviations
}

TEST(ScaleTo, CoversTheRange) {
  EXPECT_EQ(scale_to(0, 10), 0u);
  EXPECT_EQ(scale_to(~uint64_t{0}, 10), 9u);
  EXPECT_EQ(scale_to(uint64_t{1} << 63, 10), 5u);
  EXPECT_LT(unit_interval(~uint64_t{0}), 1.0);
}

}  // namespace
}  // namespace xce

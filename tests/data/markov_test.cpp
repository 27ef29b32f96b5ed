#include "src/data/markov.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "tests/support/errors.h"

namespace xce {
namespace {

std::vector<int32_t> read(const MarkovSource& source, int64_t offset, int64_t count) {
  std::vector<int32_t> ids(count, -1);
  source.read(offset, ids);
  return ids;
}

TEST(MarkovSource, AnyAccessGivesTheSameSequence) {
  MarkovSource source({.states = 16, .size = 5000, .table_seed = 1, .path_seed = 2});
  auto all = read(source, 0, 5000);
  for (int64_t offset = 0; offset < 4900; offset += 13) {
    auto part = read(source, offset, 100);
    ASSERT_TRUE(std::equal(part.begin(), part.end(), all.begin() + offset)) << offset;
  }
}

TEST(MarkovSource, RowsAreDistributions) {
  MarkovSource source({.states = 12, .size = 10, .table_seed = 5});
  for (int64_t state = 0; state < 12; ++state) {
    double sum = 0;
    int likely = 0;
    for (double p : source.transition_row(state)) {
      EXPECT_GE(p, MarkovSource::kRestart / 12 * (1 - 1e-12));
      likely += p > MarkovSource::kRestart / 12 * 1.0001;
      sum += p;
    }
    EXPECT_NEAR(sum, 1.0, 1e-12);
    EXPECT_EQ(likely, MarkovSource::kSuccessors);
  }
}

// The sequence against the table, and the conditional entropy of counted pairs against the exact one.
TEST(MarkovSource, CountsFollowTheTableAndTheEntropy) {
  constexpr int64_t kStates = 16, kTokens = 1000000;
  MarkovSource source({.states = kStates, .size = kTokens, .table_seed = 7, .path_seed = 8});
  auto ids = read(source, 0, kTokens);
  std::vector<double> pairs(kStates * kStates), singles(kStates);
  for (int64_t i = 0; i + 1 < kTokens; ++i) {
    pairs.at(ids[i] * kStates + ids[i + 1]) += 1;
    singles[ids[i]] += 1;
  }
  double entropy = 0;
  for (int64_t from = 0; from < kStates; ++from) {
    auto row = source.transition_row(from);
    ASSERT_GT(singles[from], 1000);
    for (int64_t to = 0; to < kStates; ++to) {
      double p = pairs[from * kStates + to] / singles[from];
      double deviation = std::sqrt(row[to] * (1 - row[to]) / singles[from]);
      EXPECT_NEAR(p, row[to], 5 * deviation) << from << " -> " << to;
      if (p > 0) entropy -= pairs[from * kStates + to] / (kTokens - 1) * std::log(p);
    }
  }
  EXPECT_NEAR(entropy, source.entropy_nats(), 0.003);
  EXPECT_GT(source.entropy_nats(), 0.5);
  EXPECT_LT(source.entropy_nats(), std::log(kStates) - 0.3);
}

// What comes before the present state must not matter: the entropy given two predecessors is no lower.
TEST(MarkovSource, HasNoMemoryBeyondOneState) {
  constexpr int64_t kStates = 6, kTokens = 500000;
  MarkovSource source({.states = kStates, .size = kTokens, .table_seed = 3, .path_seed = 4});
  auto ids = read(source, 0, kTokens);
  std::vector<double> triples(kStates * kStates * kStates), pairs(kStates * kStates);
  for (int64_t i = 0; i + 2 < kTokens; ++i) {
    triples[(ids[i] * kStates + ids[i + 1]) * kStates + ids[i + 2]] += 1;
    pairs[ids[i] * kStates + ids[i + 1]] += 1;
  }
  double entropy = 0;
  for (size_t i = 0; i < triples.size(); ++i)
    if (triples[i] > 0) entropy -= triples[i] / (kTokens - 2) * std::log(triples[i] / pairs[i / kStates]);
  EXPECT_NEAR(entropy, source.entropy_nats(), 0.003);
}

TEST(MarkovSource, SeedsMatter) {
  MarkovSource a({.states = 16, .size = 1000, .table_seed = 1, .path_seed = 1});
  MarkovSource other_path({.states = 16, .size = 1000, .table_seed = 1, .path_seed = 2});
  MarkovSource other_table({.states = 16, .size = 1000, .table_seed = 2, .path_seed = 1});
  EXPECT_NE(read(a, 0, 100), read(other_path, 0, 100));
  EXPECT_EQ(a.transition_row(3), other_path.transition_row(3));
  EXPECT_NE(a.transition_row(3), other_table.transition_row(3));
  EXPECT_NE(a.fingerprint(), other_path.fingerprint());
  EXPECT_NE(a.fingerprint(), other_table.fingerprint());
}

TEST(MarkovSource, Errors) {
  EXPECT_TRUE(test::throws_error(ErrorCode::kRuntime, {"states", "3"}, [] { MarkovSource({.states = 3, .size = 1}); }));
  EXPECT_TRUE(test::throws_error(ErrorCode::kCorrupt, {"no tokens"}, [] { MarkovSource({.states = 8, .size = 0}); }));
}

}  // namespace
}  // namespace xce

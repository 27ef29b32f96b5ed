// Against a map that is searched from its beginning.
#include "src/core/free_blocks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <random>

namespace xce {
namespace {

std::optional<size_t> first_fit(const std::map<size_t, size_t>& blocks, size_t size) {
  auto it = std::find_if(blocks.begin(), blocks.end(), [&](const auto& block) { return block.second >= size; });
  return it == blocks.end() ? std::nullopt : std::optional(it->first);
}

TEST(FreeBlocks, AgreesWithASearchFromTheBeginning) {
  for (uint64_t seed = 0; seed < 10; ++seed) {
    FreeBlocks free;
    std::map<size_t, size_t> want;  // offset -> size
    std::mt19937_64 gen(seed);
    for (int i = 0; i < 3000; ++i) {
      size_t offset = gen() % 500 * 100, size = 1 + gen() % 100;
      if (gen() % 2) {
        free.erase(offset);  // also where there is none
        want.erase(offset);
      } else if (want.emplace(offset, size).second) {
        free.insert(offset, size);
      }
      for (size_t asked : {size_t{1}, 1 + gen() % 100, size_t{100}, size_t{101}})
        ASSERT_EQ(free.first_fit(asked), first_fit(want, asked)) << "seed " << seed << " operation " << i;
    }
  }
}

// In the order of their offsets, which would make a list of a tree without priorities: 200,000 levels of recursion.
TEST(FreeBlocks, StaysShallowForSortedOffsets) {
  FreeBlocks free;
  const size_t n = 200000;
  for (size_t i = 0; i < n; ++i) free.insert(i * 256, 1 + i);
  for (size_t i = 0; i < n; i += 997) EXPECT_EQ(free.first_fit(1 + i), i * 256);
  for (size_t i = 0; i < n; ++i) free.erase(i * 256);
  EXPECT_EQ(free.first_fit(1), std::nullopt);
}

TEST(FreeBlocks, AnEmptyOneFitsNothing) {
  EXPECT_EQ(FreeBlocks().first_fit(0), std::nullopt);
}

}  // namespace
}  // namespace xce

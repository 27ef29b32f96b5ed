// Against a naive model that rescans its list of blocks, and the two promises of the header: same program, same
// addresses; the peak of a plan is the capacity that suffices.
#include "src/core/arena.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "kernels/base/check.h"

namespace xce {
namespace {

size_t rounded(size_t bytes) {
  return (std::max<size_t>(bytes, 1) + Arena::kAlign - 1) / Arena::kAlign * Arena::kAlign;
}

// First fit by brute force: the lowest multiple of the alignment at which no live block overlaps.
class NaiveArena {
 public:
  size_t allocate(size_t size_bytes) {
    size_t size = rounded(size_bytes);
    for (size_t at = 0;; at += Arena::kAlign) {
      bool fits = true;
      for (const Live& b : live_) fits = fits && (at + size <= b.offset || b.offset + b.size <= at);
      if (!fits) continue;
      live_.push_back({at, size});
      return at;
    }
  }
  void release(size_t offset) {
    std::erase_if(live_, [&](const Live& b) { return b.offset == offset; });
  }
  size_t in_use_bytes() const {
    size_t sum = 0;
    for (const Live& b : live_) sum += b.size;
    return sum;
  }
  size_t end() const {
    size_t end = 0;
    for (const Live& b : live_) end = std::max(end, b.offset + b.size);
    return end;
  }

 private:
  struct Live {
    size_t offset, size;
  };
  std::vector<Live> live_;
};

// Runs a random program of allocations and releases; the offsets it got.
std::vector<size_t> random_program(Arena& arena, uint64_t seed) {
  std::mt19937_64 gen(seed);
  std::vector<size_t> live, addresses;
  for (int i = 0; i < 400; ++i) {
    if (!live.empty() && gen() % 5 < 2) {
      size_t victim = gen() % live.size();
      arena.release(live[victim]);
      live.erase(live.begin() + static_cast<int64_t>(victim));
    } else {
      live.push_back(arena.allocate(gen() % 5000));
      addresses.push_back(live.back());
    }
  }
  for (size_t offset : live) arena.release(offset);
  return addresses;
}

TEST(Arena, AgreesWithANaiveFirstFit) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    Arena arena;
    NaiveArena naive;
    std::mt19937_64 gen(seed);
    std::vector<size_t> live;
    size_t peak = 0;
    for (int i = 0; i < 200; ++i) {
      if (!live.empty() && gen() % 5 < 2) {
        size_t victim = gen() % live.size();
        arena.release(live[victim]);
        naive.release(live[victim]);
        live.erase(live.begin() + static_cast<int64_t>(victim));
      } else {
        size_t bytes = gen() % 5000;
        live.push_back(naive.allocate(bytes));
        ASSERT_EQ(arena.allocate(bytes), live.back()) << "seed " << seed << " operation " << i;
        peak = std::max(peak, naive.end());
      }
      ASSERT_EQ(arena.in_use_bytes(), naive.in_use_bytes());
      ASSERT_EQ(arena.peak_bytes(), peak);
    }
  }
}

// Thousands of blocks, most of them freed again in random order: a first fit that walks along the holes.
TEST(Arena, AgreesWithFirstFitOverManyHoles) {
  for (uint64_t seed = 0; seed < 4; ++seed) {
    Arena arena;
    std::map<size_t, size_t> live;  // offset -> size
    std::vector<size_t> order;
    std::mt19937_64 gen(seed);
    auto first_fit = [&](size_t size) {
      size_t at = 0;
      for (const auto& [offset, taken] : live) {
        if (offset - at >= size) break;
        at = offset + taken;
      }
      return at;
    };
    for (int i = 0; i < 12000; ++i) {
      // grows to about 2000 blocks, then shrinks and grows by turns; few sizes or many
      bool shrink = order.size() > 2000 || (i / 1000 % 2 && gen() % 3 == 0);
      if (!order.empty() && (shrink || gen() % 5 < 2)) {
        std::swap(order[gen() % order.size()], order.back());
        arena.release(order.back());
        live.erase(order.back());
        order.pop_back();
      } else {
        size_t bytes = seed % 2 ? (1 + gen() % 5) * 1000 : gen() % 9000;
        size_t want = first_fit(rounded(bytes));
        ASSERT_EQ(arena.allocate(bytes), want) << "seed " << seed << " operation " << i;
        live[want] = rounded(bytes);
        order.push_back(want);
      }
    }
    for (size_t offset : order) arena.release(offset);
    EXPECT_EQ(arena.in_use_bytes(), 0u);
    EXPECT_EQ(arena.allocate(arena.peak_bytes()), 0u) << "all of it is one hole again";
  }
}

TEST(Arena, TheSameProgramGetsTheSameAddressesAgain) {
  Arena plan;
  std::vector<size_t> planned = random_program(plan, 7);
  std::vector<char> memory(plan.peak_bytes());
  Arena arena(memory.data(), memory.size());
  for (int round = 0; round < 3; ++round) {
    EXPECT_EQ(random_program(arena, 7), planned) << "round " << round;
    EXPECT_EQ(arena.in_use_bytes(), 0u);
  }
  EXPECT_EQ(arena.peak_bytes(), plan.peak_bytes());
}

TEST(Arena, ThePlansPeakIsExactlyTheCapacityNeeded) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    Arena plan;
    random_program(plan, seed);
    std::vector<char> memory(plan.peak_bytes());
    Arena enough(memory.data(), plan.peak_bytes());
    EXPECT_NO_THROW(random_program(enough, seed));
    Arena short_of_one(memory.data(), plan.peak_bytes() - 1);
    EXPECT_THROW(random_program(short_of_one, seed), Error);
  }
}

TEST(Arena, NeighboursCoalesceInEveryOrderOfRelease) {
  const int orders[][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
  for (const auto& order : orders) {
    Arena arena;
    size_t blocks[3], guard;
    for (size_t& b : blocks) b = arena.allocate(1000);
    guard = arena.allocate(1);
    for (int i : order) arena.release(blocks[i]);
    EXPECT_EQ(arena.allocate(3 * rounded(1000)), blocks[0]) << "the three make one hole";
    EXPECT_EQ(arena.peak_bytes(), guard + Arena::kAlign);
  }
}

TEST(Arena, AFreeTailGrowsInPlace) {
  Arena arena;
  arena.allocate(300);
  size_t tail = arena.allocate(300);
  arena.release(tail);
  EXPECT_EQ(arena.allocate(5000), tail);
  EXPECT_EQ(arena.peak_bytes(), tail + rounded(5000));
}

TEST(Arena, NeverHandsOutOverlappingOrMisalignedBlocks) {
  alignas(256) static char memory[1 << 16];
  Arena arena(memory, sizeof memory);
  std::vector<size_t> sizes = {1, 0, 255, 256, 257, 4096}, offsets;
  for (size_t i = 0; i < sizes.size(); ++i) {
    offsets.push_back(arena.allocate(sizes[i]));
    EXPECT_EQ(offsets[i] % Arena::kAlign, 0u);
    EXPECT_EQ(arena.address(offsets[i]), memory + offsets[i]);
    std::memset(arena.address(offsets[i]), static_cast<int>(i + 1), sizes[i]);
  }
  for (size_t i = 0; i < sizes.size(); ++i)
    for (size_t b = 0; b < sizes[i]; ++b) ASSERT_EQ(memory[offsets[i] + b], static_cast<char>(i + 1));
}

TEST(Arena, ExceededCapacityNamesTheSizesAndLeavesItUsable) {
  std::vector<char> memory(1024);
  Arena arena(memory.data(), memory.size());
  size_t first = arena.allocate(512);
  try {
    arena.allocate(513);
    FAIL() << "no error";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kRuntime);
    EXPECT_NE(std::string(e.what()).find("1024"), std::string::npos) << e.what();
    EXPECT_NE(std::string(e.what()).find("768"), std::string::npos) << e.what();
  }
  EXPECT_EQ(arena.in_use_bytes(), 512u);
  EXPECT_EQ(arena.allocate(512), 512u);
  arena.release(first);
  EXPECT_EQ(arena.allocate(100), first);
}

TEST(Arena, AnImpossibleSizeIsAnErrorNotASmallBlock) {
  std::vector<char> memory(1024);
  Arena arena(memory.data(), memory.size()), plan;
  for (Arena* a : {&arena, &plan}) {
    a->allocate(256);
    EXPECT_THROW(a->allocate(std::numeric_limits<size_t>::max()), Error);
    EXPECT_THROW(a->allocate(std::numeric_limits<size_t>::max() - 300), Error);
    EXPECT_EQ(a->in_use_bytes(), 256u);
  }
}

TEST(Arena, MisuseThrows) {
  Arena arena;
  size_t block = arena.allocate(100);
  EXPECT_THROW(arena.release(block + Arena::kAlign), Error) << "nothing there";
  arena.release(block);
  EXPECT_THROW(arena.release(block), Error) << "released twice";
  EXPECT_THROW(Arena(nullptr, 100), Error);
  EXPECT_EQ(arena.in_use_bytes(), 0u);
}

TEST(Arena, PlanningHasNoAddresses) {
  Arena arena;
  EXPECT_TRUE(arena.planning());
  EXPECT_EQ(arena.address(arena.allocate(size_t{1} << 40)), nullptr);
  EXPECT_EQ(arena.peak_bytes(), size_t{1} << 40);
  arena.poison_free();
}

TEST(Arena, PoisonFillsWhatIsFreeAndNothingElse) {
  std::vector<char> memory(2048, 1);
  Arena arena(memory.data(), memory.size());
  arena.allocate(256);
  size_t hole = arena.allocate(256);
  arena.allocate(256);
  arena.release(hole);
  arena.poison_free();
  for (size_t i = 0; i < memory.size(); ++i) {
    bool used = i < 256 || (i >= 512 && i < 768);
    ASSERT_EQ(memory[i], used ? 1 : '\xFF') << "byte " << i;
  }
  arena.poison_free();
  EXPECT_EQ(arena.allocate(256), hole) << "poisoning moves nothing";
}

TEST(Arena, StorageReleasesWithItsLastOwner) {
  Arena arena;
  StorageRef one = std::make_shared<Storage>(arena, 1000), two = one;
  EXPECT_EQ(one->size_bytes(), 1000u);
  one.reset();
  EXPECT_EQ(arena.in_use_bytes(), 1024u);
  two.reset();
  EXPECT_EQ(arena.in_use_bytes(), 0u);
}

}  // namespace
}  // namespace xce

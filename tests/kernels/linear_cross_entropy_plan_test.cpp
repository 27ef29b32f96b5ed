// The plan of the fused loss: constexpr, within its budget, balanced, never a demand on divisibility.
#include "kernels/linear_cross_entropy/plan.h"

#include <gtest/gtest.h>

#include <random>

namespace xce {
namespace {

constexpr LossShape kHeadline{.rows = 512,
                              .hidden = 256,
                              .vocab = 131072,
                              .accum_bytes = 4,
                              .threads = 2,
                              .converts_weight = false,
                              .may_keep = true,
                              .gradients = true};
static_assert(plan_loss(kHeadline, size_t{512} << 20).chunks == 1);
static_assert(plan_loss(kHeadline, size_t{512} << 20).kept_tiles == plan_loss(kHeadline, size_t{512} << 20).tiles);
static_assert(plan_loss(kHeadline, size_t{128} << 20).chunks == 2);
static_assert(plan_loss(kHeadline, size_t{64} << 20).bytes <= size_t{64} << 20);

LossShape random_shape(std::mt19937_64& gen) {
  auto pick = [&](std::initializer_list<int64_t> values) { return values.begin()[gen() % values.size()]; };
  return {.rows = pick({0, 1, 7, 127, 1000, 4097, 32769}),
          .hidden = pick({1, 8, 31, 256, 4096}),
          .vocab = pick({1, 2, 123, 1000, 32000, 50257, 131072, 262144}),
          .accum_bytes = pick({4, 8}),
          .threads = pick({1, 2, 3, 16}),
          .converts_weight = gen() % 2 == 0,
          .may_keep = gen() % 2 == 0,
          .gradients = gen() % 2 == 0,
          .extras = gen() % 2 == 0,
          .one_chunk = gen() % 4 == 0};
}

TEST(LinearCrossEntropyPlan, FitsAnyBudgetFromTheMinimumOn) {
  std::mt19937_64 gen(1);
  for (int round = 0; round < 300; ++round) {
    LossShape shape = random_shape(gen);
    size_t minimum = minimum_workspace_bytes(shape);
    EXPECT_THROW(plan_loss(shape, minimum - 1), Error);
    for (size_t budget : {minimum, minimum + 4096, minimum * 3, minimum + (size_t{64} << 20)}) {
      LossPlan plan = plan_loss(shape, budget);
      ASSERT_LE(plan.bytes, budget);
      ASSERT_GE(plan.chunk_rows, 1);
      ASSERT_GE(plan.chunks * plan.chunk_rows, shape.rows);
      ASSERT_TRUE(plan.chunks == 1 || (plan.chunks - 1) * plan.chunk_rows < shape.rows);  // no empty chunk
      ASSERT_GE(plan.tiles * plan.tile_cols, shape.vocab);
      ASSERT_LT((plan.tiles - 1) * plan.tile_cols, shape.vocab);
      ASSERT_TRUE(shape.may_keep || plan.kept_tiles == 0);
      ASSERT_LE(plan.tile_cols, loss_plan::kMaxTileCols);
      ASSERT_TRUE(!shape.one_chunk || plan.chunks == 1);
    }
  }
}

TEST(LinearCrossEntropyPlan, PartsDoNotOverlap) {
  std::mt19937_64 gen(2);
  for (int round = 0; round < 300; ++round) {
    LossShape s = random_shape(gen);
    LossPlan p = plan_loss(s, minimum_workspace_bytes(s) + (size_t{1} << (gen() % 28)));
    size_t a = s.accum_bytes, rows = p.chunk_rows, tile = rows * p.tile_cols * a;
    EXPECT_GE(p.labels - p.map, rows * 8);
    EXPECT_GE(p.statistics - p.labels, rows * 8);
    EXPECT_GE(p.rows - p.statistics, rows * 7 * 8);
    EXPECT_GE(p.tile_stats - p.rows, rows * (loss_plan::kRowDoubles * 8 + loss_plan::kRowValues * a));
    EXPECT_GE(p.tile_extras - p.tile_stats, p.tiles * rows * 2 * a);
    EXPECT_GE(p.x - p.tile_extras, s.extras ? p.tiles * rows * 4 * a : 0);
    EXPECT_GE(p.dx - p.x, rows * s.hidden * a);
    EXPECT_GE(p.weight - p.dx, s.gradients ? s.threads * rows * s.hidden * a : 0);
    EXPECT_GE(p.dweight - p.weight, s.converts_weight ? s.threads * p.tile_cols * s.hidden * a : 0);
    EXPECT_GE(p.buffers - p.dweight, s.one_chunk ? s.threads * p.tile_cols * (s.hidden + 1) * a : 0);
    EXPECT_GE(p.kept - p.buffers, p.kept_tiles < p.tiles ? s.threads * tile : 0);
    EXPECT_GE(p.bytes - p.kept, p.kept_tiles * tile);
    for (size_t at : {p.labels, p.statistics, p.rows, p.tile_stats, p.tile_extras, p.x, p.dx, p.weight, p.dweight,
                      p.buffers, p.kept})
      EXPECT_EQ(at % 64, 0u);
  }
}

// What rounds a tile of dweight once needs all rows there, and says so.
TEST(LinearCrossEntropyPlan, OneChunkNamesItsLargerMinimum) {
  LossShape shape = kHeadline;
  const size_t chunked = minimum_workspace_bytes(shape);
  shape.one_chunk = true;
  const size_t minimum = minimum_workspace_bytes(shape);
  EXPECT_GT(minimum, chunked + static_cast<size_t>(shape.rows * shape.hidden * shape.accum_bytes));
  EXPECT_EQ(plan_loss(shape, minimum).chunk_rows, shape.rows);
  try {
    plan_loss(shape, minimum - 1);
    FAIL();
  } catch (const Error& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find(str("at least ", minimum, " bytes")), std::string::npos) << text;
    EXPECT_NE(text.find("dweight_in_dtype"), std::string::npos) << text;
  }
}

TEST(LinearCrossEntropyPlan, KeptTilesHaveTheirOwnSlots) {
  for (int64_t kept = 0; kept <= 37; ++kept) {
    LossPlan plan{};
    plan.tiles = 37;
    plan.kept_tiles = kept;
    int64_t next = 0;
    for (int64_t t = 0; t < plan.tiles; ++t) {
      EXPECT_EQ(plan.slot(t), next);
      next += plan.keeps(t);
    }
    EXPECT_EQ(next, kept);
  }
}

// A larger budget never makes a plan that the model finds dearer.
TEST(LinearCrossEntropyPlan, MoreBudgetIsNoSlower) {
  double last = 1e300;
  for (size_t mib = 4; mib <= 512; mib += 4) {
    double now = loss_plan::cost(kHeadline, plan_loss(kHeadline, mib << 20));
    EXPECT_LE(now, last) << mib;
    last = now;
  }
}

TEST(LinearCrossEntropyPlan, TheLogitsAreNeverWhole) {
  LossPlan plan = plan_loss(kHeadline, size_t{16} << 20);
  EXPECT_LE(plan.bytes, size_t{16} << 20);
  EXPECT_LT(plan.kept_tiles, plan.tiles);
}

}  // namespace
}  // namespace xce

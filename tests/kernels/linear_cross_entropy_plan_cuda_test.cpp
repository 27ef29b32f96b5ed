// The fused loss's plan for a GPU: constexpr, within its budget, balanced, parts that do not overlap.
#include "kernels/linear_cross_entropy/plan_cuda.h"

#include <gtest/gtest.h>

#include <random>

#include "kernels/cross_entropy/loss_rows.h"
#include "tests/support/errors.h"

namespace xce {
namespace {

constexpr CudaLossShape kLarge{
    .rows = 8192, .hidden = 4096, .vocab = 128256, .bytes = 2, .accum_bytes = 4, .may_keep = true, .gradients = true};
static_assert(plan_loss(kLarge, size_t{5} << 30).chunks == 1);
static_assert(plan_loss(kLarge, size_t{5} << 30).tiles == 1);
static_assert(plan_loss(kLarge, size_t{2200} << 20).chunk_rows == 4096);
static_assert(plan_loss(kLarge, size_t{1} << 30).chunk_rows == 2048);
static_assert(plan_loss(kLarge, size_t{128} << 20).tiles > 1);
constexpr CudaLossShape single_chunk(CudaLossShape shape) {
  shape.single_chunk = true;
  return shape;
}
static_assert(plan_loss(single_chunk(kLarge), size_t{5} << 30).tiles == 1);
static_assert(plan_loss(single_chunk(kLarge), size_t{1} << 30).chunks == 1);
static_assert(plan_loss(single_chunk(kLarge), size_t{1} << 30).tile_cols >= 16384);

CudaLossShape random_shape(std::mt19937_64& gen) {
  auto pick = [&](std::initializer_list<int64_t> values) { return values.begin()[gen() % values.size()]; };
  const int64_t accum = pick({4, 8});
  return {.rows = pick({0, 1, 7, 127, 1000, 4097, 10000, 32769}),
          .hidden = pick({1, 8, 31, 256, 4096}),
          .vocab = pick({1, 2, 8, 9, 123, 1000, 32000, 50257, 131072, 262144}),
          .bytes = accum == 8 ? 8 : pick({2, 4}),
          .accum_bytes = accum,
          .may_keep = gen() % 2 == 0,
          .gradients = gen() % 2 == 0,
          .single_chunk = gen() % 4 == 0};
}

TEST(LinearCrossEntropyPlanCuda, FitsAnyBudgetFromTheMinimumOn) {
  std::mt19937_64 gen(1);
  for (int round = 0; round < 300; ++round) {
    CudaLossShape shape = random_shape(gen);
    size_t minimum = minimum_workspace_bytes(shape);
    EXPECT_THROW(plan_loss(shape, minimum - 1), Error);
    for (size_t budget : {minimum, minimum + 4096, minimum * 3, minimum + (size_t{64} << 20)}) {
      CudaLossPlan plan = plan_loss(shape, budget);
      ASSERT_GT(plan.total, 0u);
      ASSERT_LE(plan.total, budget);
      ASSERT_GE(plan.chunk_rows, 1);
      ASSERT_GE(plan.chunks * plan.chunk_rows, shape.rows);
      ASSERT_TRUE(!shape.single_chunk || plan.chunks == 1);
      ASSERT_TRUE(plan.chunks == 1 || (plan.chunks - 1) * plan.chunk_rows < shape.rows);  // no empty chunk
      ASSERT_GE(plan.tiles * plan.tile_cols, shape.vocab);
      ASSERT_LT((plan.tiles - 1) * plan.tile_cols, shape.vocab);
      ASSERT_GE(plan.ld, plan.tile_cols);
      ASSERT_EQ(plan.ld % 8, 0);
      ASSERT_TRUE(plan.tiles == 1 || plan.tile_cols % 8 == 0) << plan.tile_cols;
    }
  }
}

TEST(LinearCrossEntropyPlanCuda, PartsDoNotOverlap) {
  std::mt19937_64 gen(2);
  for (int round = 0; round < 300; ++round) {
    CudaLossShape s = random_shape(gen);
    CudaLossPlan p = plan_loss(s, minimum_workspace_bytes(s) + (size_t{1} << (gen() % 30)));
    size_t a = s.accum_bytes, rows = p.chunk_rows, hidden = s.hidden;
    EXPECT_GE(p.header, rows * p.ld * a);
    EXPECT_GE(p.scale - p.header, sizeof(loss::Totals));
    EXPECT_GE(p.row_sums - p.scale, 2 * sizeof(float));
    EXPECT_GE(p.statistics - p.row_sums, rows * 3 * sizeof(double));
    EXPECT_GE(p.row_values - p.statistics, rows * kLossStatistics * sizeof(double));
    EXPECT_GE(p.x - p.row_values, rows * 2 * a);
    EXPECT_GE(p.dx - p.x, rows * hidden * s.bytes);
    bool sums_dx = p.tiles > 1 && s.gradients && s.bytes < s.accum_bytes;
    EXPECT_GE(p.total - p.dx, sums_dx ? rows * hidden * a : 0);
    for (size_t at : {p.header, p.scale, p.row_sums, p.statistics, p.row_values, p.x, p.dx, p.total})
      EXPECT_EQ(at % 64, 0u);
  }
}

TEST(LinearCrossEntropyPlanCuda, ChunksAreBalanced) {
  CudaLossShape shape = kLarge;
  shape.rows = 10000;
  CudaLossPlan plan = plan_loss(shape, size_t{2200} << 20);  // room for 4200 rows
  EXPECT_EQ(plan.chunks, 3);
  EXPECT_LE(plan.chunk_rows, 3456);
  EXPECT_EQ(plan.chunk_rows % 128, 0);
}

TEST(LinearCrossEntropyPlanCuda, ASingleChunkAsksForMoreAndSaysSo) {
  const CudaLossShape shape = single_chunk(kLarge);
  const size_t least = minimum_workspace_bytes(shape);
  EXPECT_GT(least, minimum_workspace_bytes(kLarge));
  EXPECT_GE(least, static_cast<size_t>(kLarge.rows * kLarge.hidden * (2 + 4)));  // the inputs and dx
  EXPECT_TRUE(test::throws_error(ErrorCode::kRuntime, {str(least), "dweight_in_dtype", str("got ", least - 1)},
                                 [&] { plan_loss(shape, least - 1); }));
}

// A larger budget never makes a plan that the model finds dearer by more than the rounding of its chunks.
TEST(LinearCrossEntropyPlanCuda, MoreBudgetIsNoSlower) {
  double last = 1e300;
  for (size_t mib = 256; mib <= 5120; mib += 64) {
    double now = cuda_loss_plan::cost(kLarge, plan_loss(kLarge, mib << 20));
    EXPECT_LE(now, last * 1.001) << mib;
    last = now;
  }
}

}  // namespace
}  // namespace xce

// Products and transposes of tiles in registers, against plain loops: every row count, both strides, accumulation.
#include "kernels/cpu/tile.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace xce::cpu {
namespace {

template <class A>
class Tile : public ::testing::Test {};
using Types = ::testing::Types<float, double>;
TYPED_TEST_SUITE(Tile, Types);

template <class A>
std::vector<A> normal(int64_t n, uint64_t seed) {
  std::mt19937_64 gen(seed);
  std::normal_distribution<double> dist;
  std::vector<A> values(n);
  for (A& value : values) value = static_cast<A>(dist(gen));
  return values;
}

template <class A>
void check_multiply(int64_t rows, int64_t n, int64_t k, bool transposed, bool accumulate) {
  int64_t ldb = n + 5, ldc = n + 3;
  std::vector<A> a = normal<A>(rows * k, 1), b = normal<A>(k * ldb, 2), c = normal<A>(rows * ldc, 3);
  if (!accumulate)
    for (int64_t i = 0; i < rows; ++i) std::fill_n(c.begin() + i * ldc, n, std::numeric_limits<A>::quiet_NaN());
  std::vector<A> before = c;
  Strided<A> strided = transposed ? Strided<A>{a.data(), 1, rows} : Strided<A>{a.data(), k, 1};
  multiply(rows, n, k, strided, b.data(), ldb, c.data(), ldc, accumulate);
  double bar = sizeof(A) == 4 ? 1e-5 : 1e-13;
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      double want = accumulate ? before[i * ldc + j] : 0.0;
      for (int64_t l = 0; l < k; ++l) want += double(transposed ? a[l * rows + i] : a[i * k + l]) * b[l * ldb + j];
      ASSERT_NEAR(c[i * ldc + j], want, bar * (1 + std::fabs(want)))
          << rows << " " << n << " " << k << " at " << i << " " << j;
    }
    for (int64_t j = n; j < ldc; ++j) ASSERT_EQ(c[i * ldc + j], before[i * ldc + j]) << "beyond the row";
  }
}

TYPED_TEST(Tile, ProductsOfEveryRowCount) {
  for (int64_t rows = 0; rows <= kTileRows; ++rows)
    for (int64_t vectors : {0, 1, 2, 3, 5})
      for (int64_t k : {0, 1, 7, 31, 128})
        for (bool transposed : {false, true})
          for (bool accumulate : {false, true})
            check_multiply<TypeParam>(rows, vectors * kLanes<TypeParam>, k, transposed, accumulate);
}

TYPED_TEST(Tile, TransposesASquare) {
  constexpr int64_t kWidth = kLanes<TypeParam>, kFrom = kWidth + 3, kTo = kWidth + 1;
  std::vector<TypeParam> src = normal<TypeParam>(kWidth * kFrom, 4), dst(kWidth * kTo, -7);
  transpose_square(src.data(), kFrom, dst.data(), kTo);
  for (int64_t r = 0; r < kWidth; ++r) {
    for (int64_t c = 0; c < kWidth; ++c) EXPECT_EQ(dst[c * kTo + r], src[r * kFrom + c]) << r << " " << c;
    EXPECT_EQ(dst[r * kTo + kWidth], -7) << "beyond the row";
  }
}

TEST(TileRounding, UpAndDown) {
  EXPECT_EQ(round_up(0, 16), 0);
  EXPECT_EQ(round_up(1, 16), 16);
  EXPECT_EQ(round_up(16, 16), 16);
  EXPECT_EQ(round_down(31, 16), 16);
  EXPECT_EQ(round_down(15, 16), 0);
}

}  // namespace
}  // namespace xce::cpu

// The GEMM wrapper against plain fp64 sums: transpositions, leading dimensions, alpha and beta, odd sizes.
#include "kernels/cpu/gemm.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "kernels/base/check.h"

namespace xce::cpu {
namespace {

template <class T>
class Gemm : public ::testing::Test {
 public:
  static constexpr double kTolerance = sizeof(T) == 4 ? 2e-6 : 1e-14;
};
using Types = ::testing::Types<float, double>;
TYPED_TEST_SUITE(Gemm, Types);

template <class T>
std::vector<T> normal(int64_t n, uint64_t seed) {
  std::mt19937_64 gen(seed);
  std::normal_distribution<double> dist;
  std::vector<T> values(n);
  for (T& value : values) value = static_cast<T>(dist(gen));
  return values;
}

// One product with `pad` unused elements after each row; the pads of C must stay as they are.
template <class T>
void check(Trans ta, Trans tb, int64_t m, int64_t n, int64_t k, T alpha, T beta, int64_t pad) {
  bool at = ta == Trans::kYes, bt = tb == Trans::kYes;
  int64_t lda = (at ? m : k) + pad, ldb = (bt ? k : n) + pad, ldc = n + pad;
  std::vector<T> a = normal<T>((at ? k : m) * lda, 1), b = normal<T>((bt ? n : k) * ldb, 2), c = normal<T>(m * ldc, 3);
  if (beta == 0)
    for (T& x : c) x = std::numeric_limits<T>::quiet_NaN();
  std::vector<T> before = c;
  gemm(ta, tb, m, n, k, alpha, a.data(), lda, b.data(), ldb, beta, c.data(), ldc);
  double error = 0, norm = 0;
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      double want = 0;
      for (int64_t l = 0; l < k; ++l)
        want += double(at ? a[l * lda + i] : a[i * lda + l]) * double(bt ? b[j * ldb + l] : b[l * ldb + j]);
      want = alpha * want + (beta == 0 ? 0 : double(beta) * before[i * ldc + j]);
      error += (c[i * ldc + j] - want) * (c[i * ldc + j] - want);
      norm += want * want;
    }
    for (int64_t j = n; j < ldc; ++j)
      ASSERT_TRUE(c[i * ldc + j] == before[i * ldc + j] || (beta == 0 && std::isnan(c[i * ldc + j])));
  }
  ASSERT_LE(std::sqrt(error), Gemm<T>::kTolerance * std::sqrt(norm))
      << "trans " << at << bt << " m " << m << " n " << n << " k " << k << " alpha " << alpha << " beta " << beta;
}

TYPED_TEST(Gemm, MatchesPlainSums) {
  constexpr std::array<int64_t, 3> kSizes[] = {{1, 1, 1},    {1, 7, 31},   {7, 1, 127},   {31, 127, 1},
                                               {127, 31, 7}, {64, 48, 80}, {1025, 7, 31}, {7, 31, 1025}};
  for (Trans ta : {Trans::kNo, Trans::kYes})
    for (Trans tb : {Trans::kNo, Trans::kYes})
      for (auto [m, n, k] : kSizes) {
        check<TypeParam>(ta, tb, m, n, k, 1, 0, 0);
        check<TypeParam>(ta, tb, m, n, k, TypeParam(-0.5), 1, 3);
        check<TypeParam>(ta, tb, m, n, k, 2, TypeParam(-1.5), 1);
      }
}

TYPED_TEST(Gemm, NoTermsGiveBetaTimesC) {
  std::vector<TypeParam> c = {1, 2, 3, 4};
  gemm(Trans::kNo, Trans::kNo, 2, 2, 0, TypeParam(1), nullptr, 1, nullptr, 2, TypeParam(3), c.data(), 2);
  EXPECT_EQ(c, (std::vector<TypeParam>{3, 6, 9, 12}));
  c[1] = std::numeric_limits<TypeParam>::quiet_NaN();
  gemm(Trans::kNo, Trans::kNo, 2, 2, 0, TypeParam(1), nullptr, 1, nullptr, 2, TypeParam(0), c.data(), 2);
  EXPECT_EQ(c, (std::vector<TypeParam>{0, 0, 0, 0}));
}

TYPED_TEST(Gemm, EmptyResultsTouchNothing) {
  TypeParam* none = nullptr;
  gemm(Trans::kNo, Trans::kNo, 0, 5, 3, TypeParam(1), none, 3, none, 5, TypeParam(0), none, 5);
  gemm(Trans::kNo, Trans::kYes, 5, 0, 3, TypeParam(1), none, 3, none, 3, TypeParam(0), none, 1);
}

TYPED_TEST(Gemm, SameBitsEachTime) {
  int64_t m = 127, n = 96, k = 300;
  std::vector<TypeParam> a = normal<TypeParam>(m * k, 1), b = normal<TypeParam>(n * k, 2), first(m * n), again(m * n);
  for (auto* c : {&first, &again})
    gemm(Trans::kNo, Trans::kYes, m, n, k, TypeParam(1), a.data(), k, b.data(), k, TypeParam(0), c->data(), n);
  EXPECT_EQ(first, again);
  EXPECT_NE(first[0], TypeParam(0));
}

TYPED_TEST(Gemm, SizesBeyond32BitsAreRefused) {
  TypeParam x = 1;
  int64_t big = int64_t{1} << 31;
  EXPECT_THROW(gemm(Trans::kNo, Trans::kNo, big, 1, 1, x, &x, 1, &x, 1, x, &x, 1), Error);
  EXPECT_THROW(gemm(Trans::kNo, Trans::kNo, 1, 1, 1, x, &x, big, &x, 1, x, &x, 1), Error);
}

// As dx over the tiles of a large vocabulary: many small terms onto a C that one of them made large. Added one by one,
// each would be rounded at C's size.
TYPED_TEST(Gemm, ManyProductsOntoOneCKeepTheirSmallTerms) {
  using T = TypeParam;
  const int64_t k = 512, calls = 512;
  for (auto [m, n] : {std::array<int64_t, 2>{1, 3}, {1, 64}, {3, 1}, {64, 1}, {2, 3}, {16, 8}, {64, 64}}) {
    std::vector<T> a(m * k), b, c(m * n, 0);
    std::vector<double> want(m * n, 0);
    for (int64_t call = 0; call < calls; ++call) {
      b = normal<T>(k * n, 10 + call);
      for (int64_t i = 0; i < m * k; ++i) a[i] = T(4e-6);
      if (call == 1)
        for (int64_t i = 0; i < m; ++i) a[i * k + 7] = T(-1);
      gemm(Trans::kNo, Trans::kNo, m, n, k, T(1), a.data(), k, b.data(), n, T(1), c.data(), n);
      for (int64_t i = 0; i < m; ++i)
        for (int64_t l = 0; l < k; ++l)
          for (int64_t j = 0; j < n; ++j) want[i * n + j] += double(a[i * k + l]) * double(b[l * n + j]);
    }
    double error = 0, norm = 0;
    for (int64_t i = 0; i < m * n; ++i) {
      error += (c[i] - want[i]) * (c[i] - want[i]);
      norm += want[i] * want[i];
    }
    EXPECT_LE(std::sqrt(error), (sizeof(T) == 4 ? 2e-6 : 1e-12) * std::sqrt(norm)) << "m " << m << " n " << n;
  }
}

}  // namespace
}  // namespace xce::cpu

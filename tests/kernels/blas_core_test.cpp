// The BLAS core in use fits the processor.
#include "kernels/cpu/blas_core.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "kernels/cpu/gemm.h"

namespace xce::cpu {
namespace {

TEST(BlasCore, NoSse3KernelsOnAnAvx2Processor) {
  if (std::getenv("OPENBLAS_CORETYPE")) GTEST_SKIP() << "the core was chosen by OPENBLAS_CORETYPE";
  if (!__builtin_cpu_supports("avx2")) GTEST_SKIP() << "the processor has no AVX2";
  select_blas_core();
  EXPECT_NE(std::string(blas_core()), "Prescott");
  EXPECT_EQ(std::getenv("OPENBLAS_CORETYPE"), nullptr);
}

TEST(BlasCore, ProductsAreRightAfterTheChoice) {
  select_blas_core();
  constexpr int64_t kN = 70;
  std::vector<float> a(kN * kN), identity(kN * kN, 0.0f), c(kN * kN, -1.0f);
  for (int64_t i = 0; i < kN * kN; ++i) a[i] = static_cast<float>(i);
  for (int64_t i = 0; i < kN; ++i) identity[i * kN + i] = 1.0f;
  gemm(Trans::kNo, Trans::kNo, kN, kN, kN, 1.0f, a.data(), kN, identity.data(), kN, 0.0f, c.data(), kN);
  EXPECT_EQ(c, a);
}

}  // namespace
}  // namespace xce::cpu

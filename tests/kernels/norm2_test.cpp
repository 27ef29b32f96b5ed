// Against a sum in long double; the same bits for any number of threads; NaN and infinity are not lost.
#include "kernels/norm2.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "tests/support/array.h"
#include "tests/support/execs.h"

namespace xce {
namespace {

using test::Array;

const DType kDTypes[] = {DType::kF32, DType::kBf16, DType::kF64};
const int64_t kSizes[] = {0, 1, 7, 31, 127, 1025, 4096, 4097, 100003};

double norm2(const Exec& exec, const Array& x, double before, bool accumulate) {
  test::Vector<double> out(1, before);
  Norm2 args{x.data(), out.data(), nullptr, 0, x.size(), x.dtype(), accumulate};
  test::Vector<double> workspace(workspace_bytes(exec, args) / sizeof(double), std::nan(""));
  args.workspace = workspace.data();
  args.workspace_size_bytes = workspace.size() * sizeof(double);
  run(exec, args);
  return out[0];
}

TEST(Norm2, SumsSquaresAndAccumulates) {
  for (DType dtype : kDTypes)
    for (const Exec& exec : test::all_execs())
      for (int64_t n : kSizes) {
        Array x = Array::normal(dtype, n, 1, 3.0);
        long double want = 0;
        for (int64_t i = 0; i < n; ++i) want += static_cast<long double>(x[i]) * x[i];
        double tol = 1e-13 * static_cast<double>(want);
        EXPECT_NEAR(norm2(exec, x, std::nan(""), false), static_cast<double>(want), tol) << name_of(dtype) << " " << n;
        EXPECT_NEAR(norm2(exec, x, 2.5, true), static_cast<double>(want) + 2.5, tol + 1e-15)
            << name_of(dtype) << " " << n;
      }
}

TEST(Norm2, HasTheSameBitsForAnyNumberOfThreads) {
  for (DType dtype : kDTypes)
    for (int64_t n : kSizes) {
      Array x = Array::normal(dtype, n, 2);
      double one = norm2(test::cpu_exec(1), x, 0, false);
      for (int threads : {1, 2, 3}) {
        double got = norm2(test::cpu_exec(threads), x, 0, false);
        EXPECT_EQ(std::memcmp(&got, &one, sizeof(one)), 0) << threads << " threads, n " << n;
      }
    }
}

TEST(Norm2, HoldsSquaresBeyondTheFloatRange) {
  Array x = Array::filled(DType::kF32, 1000, 1e30);
  for (const Exec& exec : test::all_execs()) EXPECT_NEAR(norm2(exec, x, 0, false), 1e63, 1e57);
}

TEST(Norm2, NanAndInfinityMakeItNonFinite) {
  for (DType dtype : kDTypes)
    for (const Exec& exec : test::all_execs())
      for (int64_t at : {0, 5000, 12344})
        for (double bad : {std::nan(""), std::numeric_limits<double>::infinity()}) {
          Array x = Array::normal(dtype, 12345, 3);
          ASSERT_TRUE(std::isfinite(norm2(exec, x, 0, false)));
          x.set(at, bad);
          EXPECT_FALSE(std::isfinite(norm2(exec, x, 0, false))) << at;
        }
}

TEST(Norm2, RejectsBadArguments) {
  Exec exec = test::cpu_exec(1);
  Array x = Array::normal(DType::kF32, 4, 1);
  double out = 0, workspace[8];
  EXPECT_THROW(run(exec, Norm2{x.data(), nullptr, workspace, sizeof(workspace), 4, DType::kF32}), Error);
  EXPECT_THROW(run(exec, Norm2{nullptr, &out, workspace, sizeof(workspace), 4, DType::kF32}), Error);
  EXPECT_THROW(run(exec, Norm2{x.data(), &out, workspace, 8, 4, DType::kF32}), Error);
  EXPECT_THROW(run(exec, Norm2{x.data(), &out, workspace, sizeof(workspace), -1, DType::kF32}), Error);
}

}  // namespace
}  // namespace xce

// How tests compare: relative L2 error and largest error, NaN anywhere is infinite. One tolerance table for all ops.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "tests/support/array.h"

namespace xce::test {

// |got - want|_2 / |want|_2 (absolute where want is all zero); infinite if a value is not finite.
inline double relative_l2(const std::vector<double>& got, const std::vector<double>& want) {
  if (got.size() != want.size()) return std::numeric_limits<double>::infinity();
  double error = 0, norm = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    error += (got[i] - want[i]) * (got[i] - want[i]);
    norm += want[i] * want[i];
  }
  double result = std::sqrt(error) / (norm > 0 ? std::sqrt(norm) : 1.0);
  return std::isfinite(result) ? result : std::numeric_limits<double>::infinity();
}

// The bar on relative_l2 for an op whose inputs and outputs are of this dtype and whose arithmetic is
// accum_dtype(dtype).
inline double tolerance(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return 2e-6;
    case DType::kBf16:
      return 4e-3;
    case DType::kF16:
      return 5e-4;
    case DType::kF64:
      return 1e-12;
  }
  return 0;
}

inline ::testing::AssertionResult close(const Array& got, const std::vector<double>& want, double tol) {
  if (!got.guards_intact()) return ::testing::AssertionFailure() << "bytes outside the array were written";
  double error = relative_l2(got.values(), want);
  if (error <= tol) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "relative L2 error " << error << " > " << tol;
}

}  // namespace xce::test

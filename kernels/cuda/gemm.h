// Row-major matrix products by cuBLASLt: C (m x n) = alpha op(A) op(B), plus an addend. Bitwise repeatable.
#pragma once

#include <cstdint>

#include "kernels/base/dtype.h"
#include "kernels/base/exec.h"

namespace xce::cuda {

// Sums in fp32, or fp64 for fp64. `out` is `in`, or fp32 for 16-bit inputs. Rounded once, the factor and the addend
// included.
struct Gemm {
  const void* a;  // (m, k) in, rows lda apart; stored (k, m) with trans_a
  const void* b;  // (k, n) in, rows ldb apart; stored (n, k) with trans_b
  void* c;        // (m, n) out, rows ldc apart
  int64_t lda, ldb, ldc;
  int64_t m, n, k;  // all >= 1
  bool trans_a, trans_b;
  DType in, out;
  const void* addend = nullptr;  // (m, n) out, rows ldc apart, or null; may be c
  const float* alpha = nullptr;  // () on the device, read when the product runs; null: 1. Not of fp64
  bool allow_tf32 = false;       // fp32 operands may be rounded to TF32; means nothing to other types
};
void gemm(const CudaExec& exec, const Gemm& args);

}  // namespace xce::cuda

// Single-threaded matrix products for kernels that share the work among the pool's threads themselves.
// fp32 by oneDNN, single rows or columns and fp64 by OpenBLAS. At the demo's shapes (rows 1024, sides 128 to 768) one
// thread of a Xeon (Sapphire Rapids, 2.3 GHz) does 164 GFLOP/s with oneDNN and 147 with OpenBLAS, which clears and
// rereads C when beta is 0. Either with its own threads loses speed within seconds at such sizes; single-threaded
// callers hold it.
#pragma once

#include <cstdint>

namespace xce::cpu {

enum class Trans { kNo, kYes };

// Row-major C (m x n) = alpha op(A) op(B) + beta C, op(A) m x k and op(B) k x n, leading dimensions in elements.
// beta 0 never reads C. Sizes and leading dimensions fit 32 bits. Runs on the calling thread alone, to the same bits
// each time.
void gemm(Trans trans_a, Trans trans_b, int64_t m, int64_t n, int64_t k, float alpha, const float* a, int64_t lda,
          const float* b, int64_t ldb, float beta, float* c, int64_t ldc);
void gemm(Trans trans_a, Trans trans_b, int64_t m, int64_t n, int64_t k, double alpha, const double* a, int64_t lda,
          const double* b, int64_t ldb, double beta, double* c, int64_t ldc);

}  // namespace xce::cpu

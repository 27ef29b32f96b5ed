#include "kernels/cpu/gemm.h"

#include <cblas.h>
#include <omp.h>
#include <oneapi/dnnl/dnnl.h>

#include <limits>

#include "kernels/base/check.h"
#include "kernels/cpu/blas_core.h"

namespace xce::cpu {
namespace {

CBLAS_TRANSPOSE code(Trans trans) {
  return trans == Trans::kYes ? CblasTrans : CblasNoTrans;
}

char letter(Trans trans) {
  return trans == Trans::kYes ? 'T' : 'N';
}

void single_threaded_once() {
  static const bool done = [] {
    select_blas_core();
    openblas_set_num_threads(1);
    return true;
  }();
  (void)done;
}

// OpenBLAS counts in 32-bit ints; callers tile for either library, so a larger size is a bug in the tiling.
int narrow(int64_t size) {
  XCE_CHECK(size >= 0 && size <= std::numeric_limits<int>::max(), "a GEMM size that fits 32 bits", size);
  return static_cast<int>(size);
}

template <class F, class T>
void blas_gemm(F function, Trans ta, Trans tb, int64_t m, int64_t n, int64_t k, T alpha, const T* a, int64_t lda,
               const T* b, int64_t ldb, T beta, T* c, int64_t ldc) {
  single_threaded_once();
  function(CblasRowMajor, code(ta), code(tb), narrow(m), narrow(n), narrow(k), alpha, a, narrow(lda), b, narrow(ldb),
           beta, c, narrow(ldc));
}

// oneDNN shares a call among OpenMP's threads unless the calling thread asks for one; the caller's own setting returns.
class OneOpenMpThread {
 public:
  OneOpenMpThread() : before_(omp_get_max_threads()) { omp_set_num_threads(1); }
  ~OneOpenMpThread() { omp_set_num_threads(before_); }

 private:
  int before_;
};

}  // namespace

void gemm(Trans ta, Trans tb, int64_t m, int64_t n, int64_t k, float alpha, const float* a, int64_t lda, const float* b,
          int64_t ldb, float beta, float* c, int64_t ldc) {
  if (m == 0 || n == 0) return;
  if (k == 0) {
    for (int64_t i = 0; i < m; ++i)
      for (int64_t j = 0; j < n; ++j) c[i * ldc + j] = beta == 0 ? 0 : beta * c[i * ldc + j];
    return;
  }
  // oneDNN adds the terms of a single row or column to C one by one; sums over many calls would lose what C's size
  // hides.
  if (m == 1 || n == 1) return blas_gemm(cblas_sgemm, ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
  OneOpenMpThread one;
  dnnl_status_t status = dnnl_sgemm(letter(ta), letter(tb), narrow(m), narrow(n), narrow(k), alpha, a, narrow(lda), b,
                                    narrow(ldb), beta, c, narrow(ldc));
  XCE_CHECK(status == dnnl_success, "dnnl_sgemm to succeed", str("status ", status));
}
void gemm(Trans ta, Trans tb, int64_t m, int64_t n, int64_t k, double alpha, const double* a, int64_t lda,
          const double* b, int64_t ldb, double beta, double* c, int64_t ldc) {
  if (m == 0 || n == 0) return;
  blas_gemm(cblas_dgemm, ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}

}  // namespace xce::cpu

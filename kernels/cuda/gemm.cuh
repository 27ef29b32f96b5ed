// Row-major matrix products by cuBLASLt: C (m x n) = op(A) op(B), plus an addend. The algorithm of a shape is chosen
// when the shape is first seen and kept; only deterministic ones are asked for.
#pragma once

#include <cublasLt.h>

#include <cstdint>
#include <map>
#include <memory>
#include <tuple>

#include "kernels/base/cuda_exec.h"
#include "kernels/base/dtype.h"

namespace xce::cuda {

// Sums in fp32 (without TF32), or fp64 for fp64. `out` is `in`, or fp32 for bf16 inputs. Rounded once, the addend
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
};
void gemm(const CudaExec& exec, const Gemm& args);

// Owned by a CudaDevice. Not for two threads at once.
class GemmPlans {
 public:
  GemmPlans();
  ~GemmPlans();
  GemmPlans(const GemmPlans&) = delete;
  GemmPlans& operator=(const GemmPlans&) = delete;

  void run(CUstream_st* stream, const Gemm& args);

 private:
  // Everything the choice of an algorithm depends on: sizes, strides, transposes, types, addend (none, apart, in place)
  // and the pointers' alignment.
  using Key = std::tuple<int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, bool, bool, DType, DType, int, int>;
  struct Plan;

  static Key key_of(const Gemm& args);
  std::unique_ptr<Plan> choose(const Gemm& args);

  static constexpr size_t kScratchBytes = size_t{32} << 20;  // cuBLAS's own default on sm_90
  cublasLtHandle_t handle_ = nullptr;
  void* scratch_ = nullptr;
  std::map<Key, std::unique_ptr<Plan>> plans_;
};

}  // namespace xce::cuda

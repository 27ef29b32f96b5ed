// Row-major matrix products by cuBLASLt: C (m x n) = op(A) op(B), plus an addend. The algorithm of a shape is chosen
// when the shape is first seen and kept (gemm_plans.h says how); only deterministic ones are asked
// for.
#pragma once

#include <cublasLt.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/base/dtype.h"
#include "kernels/cuda/gemm_plan_text.h"
#include "kernels/cuda/gemm_plans.h"

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

// Owned by a CudaDevice; gemm_plans.h tells what its words mean. Not for two threads at once.
class GemmPlans {
 public:
  GemmPlans();
  ~GemmPlans();
  GemmPlans(const GemmPlans&) = delete;
  GemmPlans& operator=(const GemmPlans&) = delete;

  void run(CUstream_st* stream, const Gemm& args);
  void start_tuning(const GemmRace& race);
  void stop_tuning() { race_.reset(); }
  GemmPlanCounts counts() const;
  std::map<GemmShape, GemmChoice> choices() const;
  void load(const std::map<GemmShape, GemmChoice>& choices, const std::string& source);

 private:
  struct Plan;

  Plan& plan_for(CUstream_st* stream, const Gemm& args);
  // cuBLASLt's answers for the shape, best guess first; at least one.
  std::vector<GemmAlgorithm> answers(const Plan& plan, const GemmShape& shape, int most) const;
  GemmChoice race(CUstream_st* stream, const Gemm& args, const Plan& plan) const;
  // Mean ms of products run back to back for about `hold_ms`, the first third unmeasured; no value: this product cannot
  // run so.
  std::optional<double> sustained_ms(CUstream_st* stream, const Gemm& args, const Plan& plan,
                                     const GemmAlgorithm& algorithm, int64_t runs) const;
  cublasStatus_t enqueue(CUstream_st* stream, const Gemm& args, const Plan& plan, const GemmAlgorithm& algorithm) const;

  cublasLtHandle_t handle_ = nullptr;
  void* scratch_ = nullptr;
  std::optional<GemmRace> race_;  // while tuning
  std::map<GemmShape, std::unique_ptr<Plan>> plans_;
  std::map<GemmShape, GemmChoice> loaded_;
};

}  // namespace xce::cuda

// The plans of matrix products: the algorithm of a shape is chosen when the shape is first seen and kept (gemm_plans.h
// says how); only deterministic ones are asked for.
#pragma once

#include <cublasLt.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/cuda/gemm.h"
#include "kernels/cuda/gemm_plan_text.h"
#include "kernels/cuda/gemm_plans.h"

namespace xce::cuda {

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
  const float* constants_ = nullptr;  // on the device: 0, 1
  std::optional<GemmRace> race_;      // while tuning
  std::map<GemmShape, std::unique_ptr<Plan>> plans_;
  std::map<GemmShape, GemmChoice> loaded_;
};

}  // namespace xce::cuda

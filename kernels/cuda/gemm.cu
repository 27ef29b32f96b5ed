// cuBLASLt is column-major: it is asked for C^T = op(B)^T op(A)^T, so that A and B change places and nothing is moved.
#include "kernels/cuda/gemm.cuh"

#include <algorithm>
#include <limits>

#include "kernels/base/cuda_check.h"

namespace xce::cuda {
namespace {

void check(cublasStatus_t status, const char* call) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw Error(ErrorCode::kRuntime, str(call, ": ", cublasLtGetStatusName(status)));
}

cudaDataType_t data_type(DType dtype) {
  return dtype == DType::kBf16 ? CUDA_R_16BF : dtype == DType::kF32 ? CUDA_R_32F : CUDA_R_64F;
}

// The power of two up to 16 that divides every pointer: what the kernels of cuBLASLt distinguish.
int alignment(const Gemm& g) {
  uintptr_t bits = reinterpret_cast<uintptr_t>(g.a) | reinterpret_cast<uintptr_t>(g.b) |
                   reinterpret_cast<uintptr_t>(g.c) | reinterpret_cast<uintptr_t>(g.addend) | 16;
  return static_cast<int>(bits & (~bits + 1));
}

struct Layout {
  cublasLtMatrixLayout_t handle = nullptr;
  Layout(DType dtype, int64_t rows, int64_t cols, int64_t ld) {
    check(cublasLtMatrixLayoutCreate(&handle, data_type(dtype), rows, cols, ld), "cublasLtMatrixLayoutCreate");
  }
  ~Layout() { cublasLtMatrixLayoutDestroy(handle); }
  Layout(const Layout&) = delete;
};

struct Operation {
  cublasLtMatmulDesc_t handle = nullptr;
  explicit Operation(const Gemm& g) {
    bool fp64 = g.in == DType::kF64;
    check(cublasLtMatmulDescCreate(&handle, fp64 ? CUBLAS_COMPUTE_64F : CUBLAS_COMPUTE_32F,
                                   fp64 ? CUDA_R_64F : CUDA_R_32F),
          "cublasLtMatmulDescCreate");
    set(CUBLASLT_MATMUL_DESC_TRANSA, g.trans_b ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(CUBLASLT_MATMUL_DESC_TRANSB, g.trans_a ? CUBLAS_OP_T : CUBLAS_OP_N);
  }
  ~Operation() { cublasLtMatmulDescDestroy(handle); }
  Operation(const Operation&) = delete;

  template <class Value>
  void set(cublasLtMatmulDescAttributes_t attribute, Value value) {
    check(cublasLtMatmulDescSetAttribute(handle, attribute, &value, sizeof(value)), "cublasLtMatmulDescSetAttribute");
  }
};

struct Preference {
  cublasLtMatmulPreference_t handle = nullptr;
  Preference() { check(cublasLtMatmulPreferenceCreate(&handle), "cublasLtMatmulPreferenceCreate"); }
  ~Preference() { cublasLtMatmulPreferenceDestroy(handle); }
  Preference(const Preference&) = delete;

  template <class Value>
  void set(cublasLtMatmulPreferenceAttributes_t attribute, Value value) {
    check(cublasLtMatmulPreferenceSetAttribute(handle, attribute, &value, sizeof(value)),
          "cublasLtMatmulPreferenceSetAttribute");
  }
};

}  // namespace

struct GemmPlans::Plan {
  Operation operation;
  Layout a, b, c;
  cublasLtMatmulAlgo_t algorithm{};
  explicit Plan(const Gemm& g)
      : operation(g),
        a(g.in, g.trans_b ? g.k : g.n, g.trans_b ? g.n : g.k, g.ldb),
        b(g.in, g.trans_a ? g.m : g.k, g.trans_a ? g.k : g.m, g.lda),
        c(g.out, g.n, g.m, g.ldc) {}
};

GemmPlans::GemmPlans() {
  check(cublasLtCreate(&handle_), "cublasLtCreate");
  cudaError_t status = cudaMalloc(&scratch_, kScratchBytes);
  if (status != cudaSuccess) cublasLtDestroy(handle_);
  cuda::check(status, "cudaMalloc of the GEMMs' scratch");
}

GemmPlans::~GemmPlans() {
  plans_.clear();
  cudaFree(scratch_);
  cublasLtDestroy(handle_);
}

GemmPlans::Key GemmPlans::key_of(const Gemm& g) {
  int addend = !g.addend ? 0 : g.addend == g.c ? 1 : 2;
  return {g.m, g.n, g.k, g.lda, g.ldb, g.ldc, g.trans_a, g.trans_b, g.in, g.out, addend, alignment(g)};
}

std::unique_ptr<GemmPlans::Plan> GemmPlans::choose(const Gemm& g) {
  auto plan = std::make_unique<Plan>(g);
  Preference preference;
  preference.set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kScratchBytes);
  // Split sums are added in a fixed order through the scratch, never by atomics into the result.
  preference.set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                 uint32_t{CUBLASLT_REDUCTION_SCHEME_NONE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
  const uint32_t align = static_cast<uint32_t>(alignment(g));
  for (auto attribute : {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                         CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
    preference.set(attribute, align);
  cublasLtMatmulHeuristicResult_t result{};
  int found = 0;
  cublasStatus_t status =
      cublasLtMatmulAlgoGetHeuristic(handle_, plan->operation.handle, plan->a.handle, plan->b.handle, plan->c.handle,
                                     plan->c.handle, preference.handle, 1, &result, &found);
  if (status != CUBLAS_STATUS_SUCCESS || found == 0)
    throw Error(ErrorCode::kRuntime, str("cuBLASLt has no algorithm for a ", name_of(g.in), " product of m ", g.m,
                                         ", n ", g.n, ", k ", g.k, " (", cublasLtGetStatusName(status), ")"));
  plan->algorithm = result.algo;
  return plan;
}

void GemmPlans::run(CUstream_st* stream, const Gemm& g) {
  constexpr int64_t kMax = std::numeric_limits<int32_t>::max();
  XCE_CHECK(std::max({g.m, g.n, g.k}) <= kMax, "sides of a matrix product below 2^31", std::max({g.m, g.n, g.k}));
  std::unique_ptr<Plan>& plan = plans_[key_of(g)];
  if (!plan) plan = choose(g);
  const float one = 1, zero = 0;
  const double one64 = 1, zero64 = 0;
  const bool fp64 = g.in == DType::kF64;
  const void* alpha = fp64 ? static_cast<const void*>(&one64) : &one;
  const void* beta = !g.addend ? (fp64 ? static_cast<const void*>(&zero64) : &zero) : alpha;
  // Some kernels write to the scratch though they report that they need none, so all of it is given.
  check(cublasLtMatmul(handle_, plan->operation.handle, alpha, g.b, plan->a.handle, g.a, plan->b.handle, beta,
                       g.addend ? g.addend : g.c, plan->c.handle, g.c, plan->c.handle, &plan->algorithm, scratch_,
                       kScratchBytes, stream),
        "cublasLtMatmul");
}

void gemm(const CudaExec& exec, const Gemm& args) {
  exec.gemm_plans->run(exec.stream, args);
}

}  // namespace xce::cuda

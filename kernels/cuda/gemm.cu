// cuBLASLt is column-major: it is asked for C^T = op(B)^T op(A)^T, so that A and B change places and nothing is moved.
#include "kernels/cuda/gemm.cuh"

#include <algorithm>
#include <bit>
#include <limits>

#include "kernels/base/cuda_check.h"

namespace xce {
namespace cuda {
namespace {

void check(cublasStatus_t status, const char* call) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw Error(ErrorCode::kRuntime, str(call, ": ", cublasLtGetStatusName(status)));
}

cudaDataType_t data_type(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return CUDA_R_32F;
    case DType::kBf16:
      return CUDA_R_16BF;
    case DType::kF64:
      return CUDA_R_64F;
    case DType::kF16:
      return CUDA_R_16F;
  }
  throw Error(ErrorCode::kRuntime, str("expected a DType, got ", static_cast<int>(dtype)));
}
cublasComputeType_t compute_type(const GemmShape& g) {
  if (g.in == DType::kF64) return CUBLAS_COMPUTE_64F;
  return g.tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
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
  explicit Operation(const GemmShape& g) {
    check(cublasLtMatmulDescCreate(&handle, compute_type(g), data_type(accum_dtype(g.in))), "cublasLtMatmulDescCreate");
    set(CUBLASLT_MATMUL_DESC_TRANSA, g.trans_b ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(CUBLASLT_MATMUL_DESC_TRANSB, g.trans_a ? CUBLAS_OP_T : CUBLAS_OP_N);
    if (g.has_alpha) set(CUBLASLT_MATMUL_DESC_POINTER_MODE, CUBLASLT_POINTER_MODE_DEVICE);
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

struct Event {
  cudaEvent_t handle = nullptr;
  Event() { XCE_CUDA_CHECK(cudaEventCreate(&handle)); }
  ~Event() { cudaEventDestroy(handle); }
  Event(const Event&) = delete;
};

GemmShape shape_of(const Gemm& g) {
  return {.m = g.m,
          .n = g.n,
          .k = g.k,
          .lda = g.lda,
          .ldb = g.ldb,
          .ldc = g.ldc,
          .trans_a = g.trans_a,
          .trans_b = g.trans_b,
          .in = g.in,
          .out = g.out,
          .tf32 = g.allow_tf32 && g.in == DType::kF32,
          .has_alpha = g.alpha != nullptr,
          .addend = !g.addend         ? 0
                    : g.addend == g.c ? 1
                                      : 2,
          .alignment = alignment(g)};
}

bool capturing(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  XCE_CUDA_CHECK(cudaStreamIsCapturing(stream, &status));
  return status != cudaStreamCaptureStatusNone;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return (values[(values.size() - 1) / 2] + values[values.size() / 2]) / 2;
}

struct Entrant {
  GemmAlgorithm algorithm;
  std::vector<double> ms;  // of each round
};

constexpr int kMostAnswers = 40;  // it gives about eight

static_assert(sizeof(GemmAlgorithm) == sizeof(cublasLtMatmulAlgo_t));
cublasLtMatmulAlgo_t to_cublas(const GemmAlgorithm& algorithm) {
  return std::bit_cast<cublasLtMatmulAlgo_t>(algorithm);
}

}  // namespace

struct GemmPlans::Plan {
  Operation operation;
  Layout a, b, c;
  GemmChoice choice;
  bool loaded = false;
  explicit Plan(const GemmShape& s)
      : operation(s),
        a(s.in, s.trans_b ? s.k : s.n, s.trans_b ? s.n : s.k, s.ldb),
        b(s.in, s.trans_a ? s.m : s.k, s.trans_a ? s.k : s.m, s.lda),
        c(s.out, s.n, s.m, s.ldc) {}
};

GemmPlans::GemmPlans() {
  check(cublasLtCreate(&handle_), "cublasLtCreate");
  constexpr float kConstants[] = {0, 1};  // behind the scratch, which products may write to
  cudaError_t status = cudaMalloc(&scratch_, CudaDevice::kScratchBytes + sizeof(kConstants));
  if (status == cudaSuccess) {
    void* constants = static_cast<char*>(scratch_) + CudaDevice::kScratchBytes;
    status = cudaMemcpy(constants, kConstants, sizeof(kConstants), cudaMemcpyHostToDevice);
    constants_ = static_cast<const float*>(constants);
  }
  if (status != cudaSuccess) cudaFree(scratch_), cublasLtDestroy(handle_);
  cuda::check(status, "cudaMalloc of the GEMMs' scratch");
}

GemmPlans::~GemmPlans() {
  plans_.clear();
  cudaFree(scratch_);
  cublasLtDestroy(handle_);
}

std::vector<GemmAlgorithm> GemmPlans::answers(const Plan& plan, const GemmShape& shape, int most) const {
  Preference preference;
  preference.set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, CudaDevice::kScratchBytes);
  // Split sums are added in a fixed order through the scratch, never by atomics into the result.
  preference.set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                 uint32_t{CUBLASLT_REDUCTION_SCHEME_NONE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
  for (auto attribute : {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                         CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
    preference.set(attribute, static_cast<uint32_t>(shape.alignment));
  cublasLtMatmulHeuristicResult_t results[kMostAnswers];
  int found = 0;
  cublasStatus_t status =
      cublasLtMatmulAlgoGetHeuristic(handle_, plan.operation.handle, plan.a.handle, plan.b.handle, plan.c.handle,
                                     plan.c.handle, preference.handle, most, results, &found);
  std::vector<GemmAlgorithm> algorithms;
  for (int i = 0; status == CUBLAS_STATUS_SUCCESS && i < found; ++i)
    if (results[i].state == CUBLAS_STATUS_SUCCESS) algorithms.push_back(std::bit_cast<GemmAlgorithm>(results[i].algo));
  if (algorithms.empty())
    throw Error(ErrorCode::kRuntime, str("cuBLASLt has no algorithm for the matrix product ", describe(shape), " (",
                                         cublasLtGetStatusName(status), ")"));
  return algorithms;
}

cublasStatus_t GemmPlans::enqueue(CUstream_st* stream, const Gemm& g, const Plan& plan,
                                  const GemmAlgorithm& algorithm) const {
  constexpr float kHost[] = {0, 1};
  constexpr double kHost64[] = {0, 1};
  const bool fp64 = g.in == DType::kF64;
  auto constant = [&](int value) -> const void* {  // where alpha and beta are read: both on the host or the device
    return g.alpha ? constants_ + value : fp64 ? static_cast<const void*>(kHost64 + value) : kHost + value;
  };
  const void* alpha = g.alpha ? g.alpha : constant(1);
  const void* beta = constant(g.addend ? 1 : 0);
  const cublasLtMatmulAlgo_t algo = to_cublas(algorithm);
  // Some kernels write to the scratch though they report that they need none, so all of it is given.
  return cublasLtMatmul(handle_, plan.operation.handle, alpha, g.b, plan.a.handle, g.a, plan.b.handle, beta,
                        g.addend ? g.addend : g.c, plan.c.handle, g.c, plan.c.handle, &algo, scratch_,
                        CudaDevice::kScratchBytes, stream);
}

std::optional<double> GemmPlans::sustained_ms(CUstream_st* stream, const Gemm& g, const Plan& plan,
                                              const GemmAlgorithm& algorithm, int64_t runs) const {
  Event start, stop;
  const int64_t unmeasured = runs / 3;
  for (int64_t i = 0; i < runs; ++i) {
    if (i == unmeasured) XCE_CUDA_CHECK(cudaEventRecord(start.handle, stream));
    if (enqueue(stream, g, plan, algorithm) != CUBLAS_STATUS_SUCCESS) return std::nullopt;
  }
  XCE_CUDA_CHECK(cudaEventRecord(stop.handle, stream));
  XCE_CUDA_CHECK(cudaEventSynchronize(stop.handle));
  float ms = 0;
  XCE_CUDA_CHECK(cudaEventElapsedTime(&ms, start.handle, stop.handle));
  return ms / static_cast<double>(runs - unmeasured);
}

// Round by round, each time another one first; who is far behind after the first round leaves.
GemmChoice GemmPlans::race(CUstream_st* stream, const Gemm& g, const Plan& plan) const {
  constexpr double kFarBehind = 1.06, kTie = 0.98;
  std::vector<Entrant> entrants;
  for (const GemmAlgorithm& algorithm : answers(plan, shape_of(g), kMostAnswers)) entrants.push_back({algorithm, {}});

  // Heats the card and finds how many runs make a round.
  constexpr int64_t kMostRuns = 4096;
  double ms = 0;
  for (int64_t runs = 1; runs <= kMostRuns && ms * static_cast<double>(runs) < 4 * race_->round_ms; runs *= 2) {
    const std::optional<double> measured = sustained_ms(stream, g, plan, entrants[0].algorithm, runs);
    if (!measured) return {.algorithm = entrants[0].algorithm};  // run() says why
    if (runs > 1) ms = *measured;                                // the first one may load its kernel
  }
  const auto runs = std::clamp(static_cast<int64_t>(race_->round_ms / std::max(ms, 1e-4)), int64_t{3}, kMostRuns);

  for (int round = 0; round < race_->rounds; ++round) {
    for (size_t i = 0; i < entrants.size(); ++i) {
      Entrant& entrant = entrants[(i + round) % entrants.size()];
      const std::optional<double> ms = sustained_ms(stream, g, plan, entrant.algorithm, runs);
      entrant.ms.push_back(ms.value_or(std::numeric_limits<double>::infinity()));
    }
    if (round > 0) continue;
    double best = entrants[0].ms[0];
    for (const Entrant& entrant : entrants) best = std::min(best, entrant.ms[0]);
    std::erase_if(entrants, [&, first = entrants[0].algorithm](const Entrant& entrant) {
      return entrant.algorithm != first && !(entrant.ms[0] <= kFarBehind * best);
    });
  }
  const double first_ms = median(entrants[0].ms);
  GemmChoice choice{.algorithm = entrants[0].algorithm, .raced = true, .ms = first_ms, .first_ms = first_ms};
  for (const Entrant& entrant : entrants)
    if (const double ms = median(entrant.ms); ms < std::min(choice.ms, kTie * first_ms))
      choice.algorithm = entrant.algorithm, choice.ms = ms;
  if (!std::isfinite(choice.first_ms)) choice.first_ms = choice.ms;  // the first answer could not run
  return choice;
}

GemmPlans::Plan& GemmPlans::plan_for(CUstream_st* stream, const Gemm& g) {
  const GemmShape shape = shape_of(g);
  const auto found = plans_.find(shape);
  const bool known = found != plans_.end();
  if (known && (!race_ || found->second->choice.raced || found->second->loaded || capturing(stream)))
    return *found->second;
  XCE_CHECK(known || !capturing(stream), "a matrix product that ran eagerly before its capture", describe(shape));
  auto plan = std::make_unique<Plan>(shape);
  if (const auto loaded = loaded_.find(shape); loaded != loaded_.end()) {
    plan->choice = loaded->second;
    plan->loaded = true;
  } else if (race_) {
    plan->choice = race(stream, g, *plan);
  } else {
    plan->choice.algorithm = answers(*plan, shape, 1)[0];
  }
  return *(plans_[shape] = std::move(plan));
}

void GemmPlans::run(CUstream_st* stream, const Gemm& g) {
  constexpr int64_t kMax = std::numeric_limits<int32_t>::max();
  XCE_CHECK(std::max({g.m, g.n, g.k}) <= kMax, "sides of a matrix product below 2^31", std::max({g.m, g.n, g.k}));
  XCE_CHECK(!g.alpha || g.in != DType::kF64, "a factor of a product of fp32 or narrower", name_of(g.in));
  const Plan& plan = plan_for(stream, g);
  check(enqueue(stream, g, plan, plan.choice.algorithm), "cublasLtMatmul");
}

void GemmPlans::start_tuning(const GemmRace& race) {
  XCE_CHECK(race.rounds >= 1, "GemmRace.rounds >= 1", race.rounds);
  XCE_CHECK(race.round_ms > 0 && race.round_ms <= 1e4, "GemmRace.round_ms in (0, 10000]", race.round_ms);
  race_ = race;
}

GemmPlanCounts GemmPlans::counts() const {
  GemmPlanCounts counts;
  for (const auto& [shape, plan] : plans_)
    ++(plan->loaded ? counts.loaded : plan->choice.raced ? counts.raced : counts.first_answers);
  return counts;
}

std::map<GemmShape, GemmChoice> GemmPlans::choices() const {
  std::map<GemmShape, GemmChoice> all = loaded_;
  for (const auto& [shape, plan] : plans_) all[shape] = plan->choice;
  return all;
}

void GemmPlans::load(const std::map<GemmShape, GemmChoice>& choices, const std::string& source) {
  for (const auto& [shape, choice] : choices) {
    const Plan plan(shape);
    const cublasLtMatmulAlgo_t algo = to_cublas(choice.algorithm);
    cublasLtMatmulHeuristicResult_t result{};
    const cublasStatus_t status = cublasLtMatmulAlgoCheck(handle_, plan.operation.handle, plan.a.handle, plan.b.handle,
                                                          plan.c.handle, plan.c.handle, &algo, &result);
    if (status != CUBLAS_STATUS_SUCCESS || result.workspaceSize > CudaDevice::kScratchBytes)
      throw Error(ErrorCode::kCorrupt, str(source, ": cuBLASLt cannot run the algorithm of ", describe(shape), " (",
                                           cublasLtGetStatusName(status), ", scratch ", result.workspaceSize, ")"));
  }
  for (const auto& [shape, choice] : choices) loaded_[shape] = choice;
}

void gemm(const CudaExec& exec, const Gemm& args) {
  exec.gemm_plans->run(exec.stream, args);
}

}  // namespace cuda

namespace {

// What a choice of algorithms depends on besides the shape.
std::string machine_of(const CudaExec& exec) {
  cudaDeviceProp properties;
  XCE_CUDA_CHECK(cudaGetDeviceProperties(&properties, exec.device));
  return str(properties.name, ", compute capability ", exec.cc_major, ".", exec.cc_minor, ", ", exec.sm_count,
             " SMs, cuBLASLt ", cublasLtGetVersion());
}

}  // namespace

void start_gemm_tuning(const CudaExec& exec, const GemmRace& race) {
  exec.gemm_plans->start_tuning(race);
}
void stop_gemm_tuning(const CudaExec& exec) {
  exec.gemm_plans->stop_tuning();
}
GemmPlanCounts gemm_plan_counts(const CudaExec& exec) {
  return exec.gemm_plans->counts();
}
std::string gemm_plans_text(const CudaExec& exec, GemmChoices which) {
  std::map<cuda::GemmShape, cuda::GemmChoice> choices = exec.gemm_plans->choices();
  if (which == GemmChoices::kRaced) std::erase_if(choices, [](const auto& entry) { return !entry.second.raced; });
  return cuda::to_text({machine_of(exec), choices});
}
std::string load_gemm_plans_text(const CudaExec& exec, const std::string& text, const std::string& source) {
  const cuda::GemmPlanText plans = cuda::plans_from_text(text, source);
  if (plans.machine.empty()) return str(source, " is of another version of the format");
  const std::string here = machine_of(exec);
  if (plans.machine != here) return str(source, " is of ", plans.machine, "; this is ", here);
  exec.gemm_plans->load(plans.choices, source);
  return "";
}

}  // namespace xce

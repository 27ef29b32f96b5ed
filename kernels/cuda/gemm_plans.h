// How the algorithms of a CudaDevice's matrix products are chosen. Plain C++: nothing here needs CUDA installed.
//
// An algorithm is chosen when its shape (sizes, strides, types, alignment) is first seen, and kept: a loaded one, else
// cuBLASLt's first answer. Between start and stop, shapes that were neither raced nor loaded are raced instead. Choices
// that differ round differently; a run that is to be repeated bit for bit has to load the first one's text.
#pragma once

#include <cstdint>
#include <string>

#include "kernels/base/cuda_exec.h"

namespace xce {

// Each algorithm that cuBLASLt offers runs back to back for `round_ms` in every round: the fastest of a cold start is
// not the fastest at the clocks that a card under load keeps.
struct GemmRace {
  int rounds = 4;
  double round_ms = 50;
};

// Races run on the operands of the launch that brings the shape. That launch waits for the GPU, takes about a second,
// and adds to a result in place many times: whatever launches write while tuning is on is scratch. A shape within a
// graph's capture is never raced. Error(kRuntime) on a race of no rounds or no time.
void start_gemm_tuning(const CudaExec& exec, const GemmRace& race = {});
void stop_gemm_tuning(const CudaExec& exec);

// The shapes seen so far, by how their algorithm was chosen.
struct GemmPlanCounts {
  int64_t raced = 0, loaded = 0, first_answers = 0;
};
GemmPlanCounts gemm_plan_counts(const CudaExec& exec);

// Choices so far, loaded ones that no launch used included: kernels/cuda/gemm_plan_text.h has the format.
enum class GemmChoices {
  kAll,    // what makes another process round alike
  kRaced,  // without first answers, which would keep a later race from being run
};
std::string gemm_plans_text(const CudaExec& exec, GemmChoices which = GemmChoices::kAll);
// From here on the text's choices hold for shapes not seen yet. Returns "", or why the text was ignored: it is of
// another GPU, cuBLASLt or format. A damaged one is Error(kCorrupt) that names `source` and the line.
std::string load_gemm_plans_text(const CudaExec& exec, const std::string& text, const std::string& source);

}  // namespace xce

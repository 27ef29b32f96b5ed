// Token embedding: y[r] = weight[token[r]]; backward: dweight[t] (+)= sum over rows r with token[r] = t of dy[r].
#pragma once

#include <cstdint>

#include "kernels/base/dtype.h"
#include "kernels/base/exec.h"

namespace xce {

struct EmbeddingForward {
  const void* weight;     // (vocab, hidden) dtype
  const int32_t* tokens;  // (rows) in [0, vocab); an id outside gives a row of zeros
  void* y;                // (rows, hidden) dtype, out
  int64_t rows, vocab, hidden;
  DType dtype;
};
// Sums each token's rows in row order: the same bits for any number of threads and in every run.
struct EmbeddingBackward {
  const void* dy;         // (rows, hidden) dtype
  const int32_t* tokens;  // (rows); ids outside [0, vocab) add nothing
  void* dweight;          // (vocab, hidden) accum_dtype(dtype); every element written, or added to with accumulate
  int64_t rows, vocab, hidden;
  DType dtype;
  bool accumulate = false;
};

void launch(const CpuExec& exec, const EmbeddingForward& args);
void launch(const CpuExec& exec, const EmbeddingBackward& args);
void launch(const CudaExec& exec, const EmbeddingForward& args);
void launch(const CudaExec& exec, const EmbeddingBackward& args);

// Error(kRuntime) that names the field at fault; both launches begin with it.
void check_args(const EmbeddingForward& args);
void check_args(const EmbeddingBackward& args);

}  // namespace xce

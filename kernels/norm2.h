// Squared Euclidean norm of a flat array: out (+)= sum x_i^2, in fp64, by fixed blocks whose sums are added in order,
// so the result is the same for any number of threads. A NaN or infinity in x makes the result non-finite.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/base/dtype.h"
#include "kernels/base/exec.h"

namespace xce {

struct Norm2 {
  const void* x;    // (n) dtype
  double* out;      // () overwritten or, with accumulate, added to
  void* workspace;  // workspace_bytes(exec, args)
  size_t workspace_size_bytes;
  int64_t n;
  DType dtype;
  bool accumulate = false;
};

void launch(const CpuExec& exec, const Norm2& args);
size_t workspace_bytes(const CpuExec& exec, const Norm2& args);
void launch(const CudaExec& exec, const Norm2& args);
size_t workspace_bytes(const CudaExec& exec, const Norm2& args);

// Error(kRuntime) that names the field at fault; both launches begin with it.
void check_args(const Norm2& args, size_t needed_workspace_bytes);

}  // namespace xce

// RMSNorm (Zhang & Sennrich 2019): y = weight * x * rstd, rstd = 1 / sqrt(mean(x^2) + eps), per row.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/base/dtype.h"
#include "kernels/base/exec.h"

namespace xce {

struct RmsNormForward {
  const void* x;       // (rows, cols) dtype
  const void* weight;  // (cols) dtype
  void* y;             // (rows, cols) dtype, out; may be x
  void* rstd;          // (rows) accum_dtype(dtype), out: kept for backward; null when not wanted
  int64_t rows, cols;
  DType dtype;
  double eps = 1e-5;
};
// dx = rstd * (weight * dy - xhat * mean(weight * dy * xhat)), xhat = x * rstd; dweight = sum over rows of dy * xhat.
struct RmsNormBackward {
  const void* x;       // (rows, cols) dtype
  const void* weight;  // (cols) dtype
  const void* rstd;    // (rows) accum_dtype(dtype), of the forward
  const void* dy;      // (rows, cols) dtype
  void* dx;            // (rows, cols) dtype, out or, with accumulate_dx, in and out; may be dy
  void* dweight;       // (cols) accum_dtype(dtype), overwritten or, with accumulate_dweight, added to
  void* workspace;     // workspace_bytes(exec, args): one partial dweight per thread or block, summed in their order
  size_t workspace_size_bytes;
  int64_t rows, cols;
  DType dtype;
  bool accumulate_dx = false;
  bool accumulate_dweight = false;
};

void launch(const CpuExec& exec, const RmsNormForward& args);
void launch(const CpuExec& exec, const RmsNormBackward& args);
size_t workspace_bytes(const CpuExec& exec, const RmsNormBackward& args);
void launch(const CudaExec& exec, const RmsNormForward& args);
void launch(const CudaExec& exec, const RmsNormBackward& args);
size_t workspace_bytes(const CudaExec& exec, const RmsNormBackward& args);

// Error(kRuntime) that names the field at fault; both launches begin with it.
void check_args(const RmsNormForward& args);
void check_args(const RmsNormBackward& args, size_t needed_workspace_bytes);

}  // namespace xce

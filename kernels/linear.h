// Linear layer without bias: y = x W^T, or y = addend + x W^T (a residual branch). Backward: dx = dy W, dweight = dy^T
// x; each of the two may be left out.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/base/dtype.h"
#include "kernels/base/exec.h"

namespace xce {

struct LinearForward {
  const void* x;       // (rows, in) dtype
  const void* weight;  // (out, in) dtype
  void* y;             // (rows, out) dtype, out; rounded once, the addend included
  void* workspace;     // workspace_bytes(exec, args); may be null when that is 0
  size_t workspace_size_bytes;
  int64_t rows, in, out;
  DType dtype;
  const void* addend = nullptr;  // (rows, out) dtype, or null; may be y
};
struct LinearBackward {
  const void* x;       // (rows, in) dtype; null when dweight is
  const void* weight;  // (out, in) dtype; null when dx is
  const void* dy;      // (rows, out) dtype
  void* dx;            // (rows, in) dtype or null; overwritten or, with accumulate_dx, added to
  void* dweight;       // (out, in) accum_dtype(dtype) or null; overwritten or, with accumulate_dweight, added to
  void* workspace;     // workspace_bytes(exec, args); may be null when that is 0
  size_t workspace_size_bytes;
  int64_t rows, in, out;
  DType dtype;
  bool accumulate_dx = false;
  bool accumulate_dweight = false;
};

void launch(const CpuExec& exec, const LinearForward& args);
void launch(const CpuExec& exec, const LinearBackward& args);
size_t workspace_bytes(const CpuExec& exec, const LinearForward& args);
size_t workspace_bytes(const CpuExec& exec, const LinearBackward& args);
void launch(const CudaExec& exec, const LinearForward& args);
void launch(const CudaExec& exec, const LinearBackward& args);
size_t workspace_bytes(const CudaExec& exec, const LinearForward& args);
size_t workspace_bytes(const CudaExec& exec, const LinearBackward& args);

// Error(kRuntime) that names the field at fault; both launches begin with it.
void check_args(const LinearForward& args, size_t needed_workspace_bytes);
void check_args(const LinearBackward& args, size_t needed_workspace_bytes);

}  // namespace xce

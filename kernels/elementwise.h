// Sums, conversions and fills over flat arrays.
#pragma once

#include <cstdint>

#include "kernels/base/dtype.h"
#include "kernels/base/exec.h"

namespace xce {

struct Add {
  const void* a;  // (n) dtype
  const void* b;  // (n) dtype
  void* y;        // (n) dtype, out: a + b; may be a or b
  int64_t n;
  DType dtype;
};
struct Convert {
  const void* x;  // (n) from
  void* y;        // (n) to, out, rounded to nearest even; may be x when the sizes are equal
  int64_t n;
  DType from, to;
};
struct Fill {
  void* y;  // (n) dtype, out
  int64_t n;
  DType dtype;
  double value;
};

void launch(const CpuExec& exec, const Add& args);
void launch(const CpuExec& exec, const Convert& args);
void launch(const CpuExec& exec, const Fill& args);
void launch(const CudaExec& exec, const Add& args);
void launch(const CudaExec& exec, const Convert& args);
void launch(const CudaExec& exec, const Fill& args);

// Error(kRuntime) that names the field at fault; both launches begin with it.
void check_args(const Add& args);
void check_args(const Convert& args);
void check_args(const Fill& args);

}  // namespace xce

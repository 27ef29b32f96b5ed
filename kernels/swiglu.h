// SwiGLU (Shazeer 2020): y = silu(gate) * up, silu(g) = g / (1 + exp(-g)); gate and up lie side by side in one array.
#pragma once

#include <cstdint>

#include "kernels/base/dtype.h"
#include "kernels/base/exec.h"

namespace xce {

struct SwigluForward {
  const void* gate_up;  // (rows, 2 * cols) dtype: each row gate [cols] then up [cols]
  void* y;              // (rows, cols) dtype, out
  int64_t rows, cols;
  DType dtype;
};
// With y, the forward's result is made once more, bit for bit: a caller that needs it in the backward need not keep it.
struct SwigluBackward {
  const void* gate_up;  // (rows, 2 * cols) dtype
  const void* dy;       // (rows, cols) dtype
  void* dgate_up;       // (rows, 2 * cols) dtype, out; may be gate_up
  int64_t rows, cols;
  DType dtype;
  void* y = nullptr;  // (rows, cols) dtype, out, or null; may be dy
};

void launch(const CpuExec& exec, const SwigluForward& args);
void launch(const CpuExec& exec, const SwigluBackward& args);
void launch(const CudaExec& exec, const SwigluForward& args);
void launch(const CudaExec& exec, const SwigluBackward& args);

// Error(kRuntime) that names the field at fault; both launches begin with it.
void check_args(const SwigluForward& args);
void check_args(const SwigluBackward& args);

}  // namespace xce

// AdamW (Loshchilov & Hutter 2019) over a flat arena. With t = state->updates (already counting this update), g the
// gradient times state->grad_scale:  m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2;
//   w -= lr * (m / (1 - b1^t) / (sqrt(v / (1 - b2^t)) + eps) + decay * w).
// state->apply == 0 leaves every array bit for bit as it was. An update with t < 1 is an Error on the CPU; a GPU, whose
// host does not read the state, leaves every array as it was.
#pragma once

#include <cstdint>

#include "kernels/base/dtype.h"
#include "kernels/base/exec.h"
#include "kernels/step_control.h"

namespace xce {

struct AdamW {
  static constexpr int64_t kBlock = 64;  // elements that share one weight decay
  void* master;                          // (n) accum_dtype(dtype), in and out
  void* m;                               // (n) accum_dtype(dtype), in and out
  void* v;                               // (n) accum_dtype(dtype), in and out
  const void* grad;                      // (n) accum_dtype(dtype)
  void* compute;                         // (n) dtype, out: the rounded weights; null when master is the compute copy
  const float* decay;                    // (ceil(n / kBlock)) weight decay of each block
  const StepState* state;                // () lr, grad_scale, updates, apply
  int64_t n;
  DType dtype;
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8;
};

void launch(const CpuExec& exec, const AdamW& args);
void launch(const CudaExec& exec, const AdamW& args);

// Error(kRuntime) that names the field at fault; both launches begin with it.
void check_args(const AdamW& args);

}  // namespace xce

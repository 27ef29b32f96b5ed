// AdamW (Loshchilov & Hutter 2019) over a flat arena. With t = state->updates (already counting this update), g the
// gradient times state->grad_scale:  m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2;
//   w -= lr * (m / (1 - b1^t) / (sqrt(v / (1 - b2^t)) + eps) + decay * w).
// state->apply == 0 leaves every array bit for bit as it was. An update with t < 1 is an Error on the CPU; a GPU, whose
// host does not read the state, leaves every array as it was.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/base/dtype.h"
#include "kernels/base/exec.h"
#include "kernels/base/host_device.h"
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

// What all elements of an update share; A is accum_dtype. Made in fp64, once per launch or block.
template <class A>
struct AdamWScalars {
  A beta1, one_minus_beta1, beta2, one_minus_beta2, eps, grad_scale;
  A step_size;     // lr / (1 - beta1^t)
  A v_correction;  // 1 / (1 - beta2^t)
  A lr;
};
template <class A>
XCE_HOST_DEVICE inline AdamWScalars<A> adamw_scalars(const AdamW& args) {
  const StepState& state = *args.state;
  const double t = static_cast<double>(state.updates);
  return {static_cast<A>(args.beta1),
          static_cast<A>(1 - args.beta1),
          static_cast<A>(args.beta2),
          static_cast<A>(1 - args.beta2),
          static_cast<A>(args.eps),
          static_cast<A>(state.grad_scale),
          static_cast<A>(state.lr / (1 - std::pow(args.beta1, t))),
          static_cast<A>(1 / (1 - std::pow(args.beta2, t))),
          static_cast<A>(state.lr)};
}
// One element; shrink is lr * decay.
template <class A>
XCE_HOST_DEVICE inline void adamw_update(const AdamWScalars<A>& s, A shrink, A grad, A& master, A& m, A& v) {
  const A g = grad * s.grad_scale;
  m = s.beta1 * m + s.one_minus_beta1 * g;
  v = s.beta2 * v + s.one_minus_beta2 * (g * g);
  master = master - (s.step_size * m / (std::sqrt(v * s.v_correction) + s.eps) + shrink * master);
}

void launch(const CpuExec& exec, const AdamW& args);
void launch(const CudaExec& exec, const AdamW& args);

// Error(kRuntime) that names the field at fault; both launches begin with it.
void check_args(const AdamW& args);

}  // namespace xce

// Causal attention by cuDNN for bf16. Plain C++: nothing here needs cuDNN or CUDA installed. CMake chooses between
// sdpa_cudnn.cpp and sdpa_none.cpp, which takes nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "kernels/base/cuda_exec.h"

namespace xce::cuda {

// Arrays as in kernels/attention.h, of bf16; row strides in elements, those of o and d_o heads * head_dim.
struct Sdpa {
  const void *q, *k, *v;
  int64_t qkv_stride;
  const void* o;    // out of forward, in of backward
  const void* lse;  // fp32, likewise; null in forward when not wanted
  const void* d_o;  // from here on: backward alone
  void *dq, *dk, *dv;
  int64_t dqkv_stride;
  void* workspace;  // sdpa_workspace_bytes
  int64_t batch, seq_len, heads, kv_heads, head_dim;
  double scale;
  bool backward;
  bool deterministic = true;  // of backward
};

// Whether it is taken for these sizes: a build with cuDNN, an sm_90 (elsewhere its deterministic backward is untested),
// seq_len of at least 2, head_dim and strides multiples of 8, head_dim at most 256, and in backward a workspace of at
// most 4.5 GiB for one key/value head of one sequence. Pointers are not looked at; they have to be 16-byte aligned.
bool sdpa_takes(const CudaExec& exec, const Sdpa& args);
// Arithmetic on the sizes, so that it can be told without a GPU: a bound on what cuDNN's plans ask for. Plans are only
// accepted below it.
size_t sdpa_workspace_bytes(const CudaExec& exec, const Sdpa& args);
// Enqueues. Error(kRuntime) when cuDNN has no plan within the bound, with both sizes; never another path.
void sdpa(const CudaExec& exec, const Sdpa& args);

// cuDNN's handle and the plan of each shape, built when the shape is first seen, which must not be within a capture.
// Owned by a CudaDevice. Not for two threads at once.
class SdpaPlans {
 public:
  struct State;

  SdpaPlans();
  ~SdpaPlans();
  State& state();  // made when first asked for

 private:
  std::unique_ptr<State> state_;
};

}  // namespace xce::cuda

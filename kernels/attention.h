// Causal grouped-query attention: o = softmax(scale q k^T, keys up to the query's position) v, per batch entry and
// head. Walks tiles of keys with a running maximum and sum (FlashAttention, Dao et al. 2022); never forms seq_len x
// seq_len. Deterministic (the same bits in every run on the same device) unless exec.deterministic says otherwise. On
// CUDA head_dim is at most 256.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/base/dtype.h"
#include "kernels/base/exec.h"

namespace xce {

// Rows are (batch, seq_len) tokens; query head h reads key/value head h / (heads / kv_heads). q, k and v may be parts
// of one array (a fused projection): each has the same row stride.
struct AttentionForward {
  const void* q;       // rows of (heads, head_dim) dtype
  const void* k;       // rows of (kv_heads, head_dim) dtype
  const void* v;       // rows of (kv_heads, head_dim) dtype
  int64_t qkv_stride;  // elements from row to row of q, k and v
  void* o;             // (batch * seq_len, heads * head_dim) dtype, out
  void* lse;  // (batch, heads, seq_len) accum_dtype(dtype), out: log-sum-exp, kept for backward; null when not wanted
  void* workspace;  // workspace_bytes(exec, args)
  size_t workspace_size_bytes;
  int64_t batch, seq_len, heads, kv_heads, head_dim;
  DType dtype;
  double scale;  // usually 1 / sqrt(head_dim)
};
struct AttentionBackward {
  const void* q;
  const void* k;
  const void* v;
  int64_t qkv_stride;
  const void* o;    // (batch * seq_len, heads * head_dim) dtype, of the forward
  const void* lse;  // (batch, heads, seq_len) accum_dtype(dtype), of the forward
  const void* d_o;  // (batch * seq_len, heads * head_dim) dtype
  void* dq;         // as q, k, v: rows of row stride dqkv_stride, out, overwritten
  void* dk;
  void* dv;
  int64_t dqkv_stride;
  void* workspace;  // workspace_bytes(exec, args)
  size_t workspace_size_bytes;
  int64_t batch, seq_len, heads, kv_heads, head_dim;
  DType dtype;
  double scale;
};

void launch(const CpuExec& exec, const AttentionForward& args);
void launch(const CpuExec& exec, const AttentionBackward& args);
size_t workspace_bytes(const CpuExec& exec, const AttentionForward& args);
size_t workspace_bytes(const CpuExec& exec, const AttentionBackward& args);
void launch(const CudaExec& exec, const AttentionForward& args);
void launch(const CudaExec& exec, const AttentionBackward& args);
size_t workspace_bytes(const CudaExec& exec, const AttentionForward& args);
size_t workspace_bytes(const CudaExec& exec, const AttentionBackward& args);

// Which kernels a launch on CUDA takes, for a run's description: "cuDNN", "own, tensor cores" or "own, CUDA cores".
// bf16 with head_dim a multiple of 8, and strides and pointers of whole 16-byte vectors, goes to cuDNN where the build
// has it and it takes the sizes (kernels/cuda/sdpa/sdpa.h), unless exec.use_cudnn is false; else to our tensor-core
// kernels up to head_dim 128. Everything else goes to our kernels on CUDA cores. The choice depends on nothing else: a
// path that fails is an error, never a reason to take another.
const char* attention_kernels(const CudaExec& exec, const AttentionForward& args);
const char* attention_kernels(const CudaExec& exec, const AttentionBackward& args);

// Error(kRuntime) that names the field at fault: what workspace_bytes and launch of every device begin with. Pointers
// may be null in the first, and where batch or seq_len is 0.
void check_sizes(const AttentionForward& args);
void check_sizes(const AttentionBackward& args);
void check_args(const AttentionForward& args, size_t needed_workspace_bytes);
void check_args(const AttentionBackward& args, size_t needed_workspace_bytes);

}  // namespace xce

// Chooses tile sizes for the own kernels and enqueues them.
#include "kernels/attention.h"

#include "kernels/attention_simt_cuda.cuh"
#include "kernels/base/cuda_check.h"
#include "kernels/base/workspace.h"
#include "kernels/cuda/launch.cuh"

namespace xce {
namespace {

using namespace attention_cuda;

constexpr int64_t kMaxHeadDim = 256;

// Calls f(std::integral_constant<int, C>) with the vectors of 64 columns that hold head_dim.
template <class F>
void with_columns(int64_t head_dim, F&& f) {
  if (head_dim <= 64)
    f(std::integral_constant<int, 1>{});
  else if (head_dim <= 128)
    f(std::integral_constant<int, 2>{});
  else
    f(std::integral_constant<int, 4>{});
}

// Rows per thread: the most whose tiles fit everywhere (fp64 backward beyond 128 columns does not, with any).
template <class T>
constexpr int forward_rows(int columns) {
  return (columns <= 2 ? 4 : 2) / (sizeof(T) == 8 ? 2 : 1);
}
template <class T>
constexpr int backward_rows(int columns) {
  const int rows = (columns == 1 ? 4 : columns == 2 ? 2 : 1) / (sizeof(T) == 8 ? 2 : 1);
  return rows < 1 ? 1 : rows;
}

// True when rows `stride` elements apart can be read kVec elements at a time, from every pointer.
template <class T, class... Pointers>
bool rows_in_vectors(int64_t head_dim, int64_t stride, const Pointers*... pointers) {
  const uintptr_t bits = (reinterpret_cast<uintptr_t>(pointers) | ...);
  return head_dim % kVec == 0 && stride % kVec == 0 && bits % std::min<size_t>(16, kVec * sizeof(T)) == 0;
}

template <class Kernel, class... Params>
void enqueue(const CudaExec& exec, const char* name, Kernel* kernel, int64_t blocks, size_t shared_bytes,
             const Params&... params) {
  XCE_CHECK(blocks < (int64_t{1} << 31), str(name, " of fewer than 2^31 blocks"), blocks);
  if (shared_bytes > kSharedBytesEverywhere) {
    int most = 0;
    XCE_CUDA_CHECK(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, exec.device));
    XCE_CHECK(shared_bytes <= static_cast<size_t>(most),
              str(name, ".head_dim and dtype whose tiles fit into the ", most, " bytes of this GPU's shared memory"),
              str(shared_bytes, " bytes"));
  }
  XCE_CUDA_CHECK(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                      cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes)));
  kernel<<<static_cast<unsigned>(blocks), kBlockThreads, shared_bytes, exec.stream>>>(params...);
  cuda::check_launch(name);
}

template <class T>
void forward(const CudaExec& exec, const AttentionForward& g) {
  const bool vectors = rows_in_vectors<T>(g.head_dim, g.qkv_stride, g.q, g.k, g.v);
  with_columns(g.head_dim, [&]<int C>(std::integral_constant<int, C>) {
    constexpr int R = forward_rows<T>(C);
    const int64_t tiles = cuda::ceil_div(g.seq_len, kSide * R);
    enqueue(exec, "AttentionForward", forward_simt<T, R, C>, g.batch * g.heads * tiles, forward_shared_bytes<T, R, C>(),
            g, static_cast<Accum<T>>(g.scale), vectors);
  });
}

template <class T>
void backward(const CudaExec& exec, const AttentionBackward& g) {
  auto* delta = Carver(g.workspace).take<Accum<T>>(g.batch * g.heads * g.seq_len);
  delta_rows<T><<<cuda::grid_for(exec, g.batch * g.heads * g.seq_len * 32), cuda::kThreads, 0, exec.stream>>>(g, delta);
  cuda::check_launch("AttentionBackward's delta");
  const bool vectors = rows_in_vectors<T>(g.head_dim, g.qkv_stride, g.q, g.k, g.v, g.d_o);
  with_columns(g.head_dim, [&]<int C>(std::integral_constant<int, C>) {
    constexpr int R = backward_rows<T>(C);
    constexpr size_t shared_bytes = backward_shared_bytes<T, R, C>();
    const auto scale = static_cast<Accum<T>>(g.scale);
    const int64_t tiles = cuda::ceil_div(g.seq_len, kSide * R);
    enqueue(exec, "AttentionBackward", backward_keys<T, R, C>, g.batch * g.kv_heads * tiles, shared_bytes, g, scale,
            static_cast<const Accum<T>*>(delta), vectors);
    enqueue(exec, "AttentionBackward", backward_queries<T, R, C>, g.batch * g.heads * tiles, shared_bytes, g, scale,
            static_cast<const Accum<T>*>(delta), vectors);
  });
}

template <class Args>
void check_head_dim(const Args& args, const char* name) {
  XCE_CHECK(args.head_dim <= kMaxHeadDim, str(name, ".head_dim <= ", kMaxHeadDim, " on CUDA"), args.head_dim);
}

}  // namespace

size_t workspace_bytes(const CudaExec&, const AttentionForward& args) {
  check_sizes(args);
  return 0;
}
size_t workspace_bytes(const CudaExec&, const AttentionBackward& args) {
  check_sizes(args);
  Carver carver(nullptr);
  visit_dtype(args.dtype,
              [&]<class T>(std::type_identity<T>) { carver.take<Accum<T>>(args.batch * args.heads * args.seq_len); });
  return carver.used_bytes();
}

void launch(const CudaExec& exec, const AttentionForward& args) {
  check_args(args, workspace_bytes(exec, args));
  check_head_dim(args, "AttentionForward");
  if (args.batch == 0 || args.seq_len == 0) return;
  visit_dtype(args.dtype, [&]<class T>(std::type_identity<T>) { forward<T>(exec, args); });
}
void launch(const CudaExec& exec, const AttentionBackward& args) {
  check_args(args, workspace_bytes(exec, args));
  check_head_dim(args, "AttentionBackward");
  if (args.batch == 0 || args.seq_len == 0) return;
  visit_dtype(args.dtype, [&]<class T>(std::type_identity<T>) { backward<T>(exec, args); });
}

}  // namespace xce

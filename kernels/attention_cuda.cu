// Chooses between cuDNN and the own kernels, and the tile sizes of these; enqueues them.
#include "kernels/attention.h"

#include "kernels/attention_mma_cuda.cuh"
#include "kernels/attention_simt_cuda.cuh"
#include "kernels/base/cuda_check.h"
#include "kernels/base/workspace.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/sdpa/sdpa.h"

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

struct Grid {
  int64_t blocks;
  int threads;
  size_t shared_bytes;
};
template <class Kernel, class... Params>
void enqueue(const CudaExec& exec, const char* name, Kernel* kernel, const Grid& grid, const Params&... params) {
  const auto [blocks, threads, shared_bytes] = grid;
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
  kernel<<<static_cast<unsigned>(blocks), threads, shared_bytes, exec.stream>>>(params...);
  cuda::check_launch(name);
}

template <class T>
void forward_simt(const CudaExec& exec, const AttentionForward& g) {
  const bool vectors = rows_in_vectors<T>(g.head_dim, g.qkv_stride, g.q, g.k, g.v);
  with_columns(g.head_dim, [&]<int C>(std::integral_constant<int, C>) {
    constexpr int R = forward_rows<T>(C);
    const int64_t tiles = cuda::ceil_div(g.seq_len, kSide * R);
    const Grid grid{g.batch * g.heads * tiles, kBlockThreads, forward_shared_bytes<T, R, C>()};
    enqueue(exec, "AttentionForward", attention_cuda::forward_simt<T, R, C>, grid, g, static_cast<Accum<T>>(g.scale),
            vectors);
  });
}

template <class T>
const Accum<T>* delta_of(const CudaExec& exec, const AttentionBackward& g) {
  const int64_t rows = g.batch * g.heads * g.seq_len;
  auto* delta = Carver(g.workspace).take<Accum<T>>(rows);
  delta_rows<T><<<cuda::grid_for(exec, rows * 32), cuda::kThreads, 0, exec.stream>>>(g, delta);
  cuda::check_launch("AttentionBackward's delta");
  return delta;
}

template <class T>
void backward_simt(const CudaExec& exec, const AttentionBackward& g) {
  const Accum<T>* delta = delta_of<T>(exec, g);
  const bool vectors = rows_in_vectors<T>(g.head_dim, g.qkv_stride, g.q, g.k, g.v, g.d_o);
  with_columns(g.head_dim, [&]<int C>(std::integral_constant<int, C>) {
    constexpr int R = backward_rows<T>(C);
    constexpr size_t shared_bytes = backward_shared_bytes<T, R, C>();
    const auto scale = static_cast<Accum<T>>(g.scale);
    const int64_t tiles = cuda::ceil_div(g.seq_len, kSide * R);
    const Grid keys{g.batch * g.kv_heads * tiles, kBlockThreads, shared_bytes};
    const Grid queries{g.batch * g.heads * tiles, kBlockThreads, shared_bytes};
    enqueue(exec, "AttentionBackward", backward_keys<T, R, C>, keys, g, scale, delta, vectors);
    enqueue(exec, "AttentionBackward", backward_queries<T, R, C>, queries, g, scale, delta, vectors);
  });
}

template <int D>
void forward_on_tensor_cores(const CudaExec& exec, const AttentionForward& g) {
  const Grid grid{g.batch * g.heads * cuda::ceil_div(g.seq_len, kMmaRows), kMmaThreads, forward_mma_bytes<D>()};
  enqueue(exec, "AttentionForward", forward_mma<D>, grid, g, static_cast<float>(g.scale));
}
template <int D>
void backward_on_tensor_cores(const CudaExec& exec, const AttentionBackward& g, const float* delta) {
  const int64_t tiles = g.batch * cuda::ceil_div(g.seq_len, kMmaRows);
  const auto scale = static_cast<float>(g.scale);
  const Grid keys{g.kv_heads * tiles, kMmaThreads, backward_mma_bytes<D>()};
  const Grid queries{g.heads * tiles, kMmaThreads, backward_mma_bytes<D>()};
  enqueue(exec, "AttentionBackward", backward_keys_mma<D>, keys, g, scale, delta);
  enqueue(exec, "AttentionBackward", backward_queries_mma<D>, queries, g, scale, delta);
}

cuda::Sdpa sdpa_of(const CudaExec&, const AttentionForward& g) {
  return {.q = g.q,
          .k = g.k,
          .v = g.v,
          .qkv_stride = g.qkv_stride,
          .o = g.o,
          .lse = g.lse,
          .d_o = nullptr,
          .dq = nullptr,
          .dk = nullptr,
          .dv = nullptr,
          .dqkv_stride = 0,
          .workspace = g.workspace,
          .batch = g.batch,
          .seq_len = g.seq_len,
          .heads = g.heads,
          .kv_heads = g.kv_heads,
          .head_dim = g.head_dim,
          .scale = g.scale,
          .backward = false};
}
cuda::Sdpa sdpa_of(const CudaExec& exec, const AttentionBackward& g) {
  return {.q = g.q,
          .k = g.k,
          .v = g.v,
          .qkv_stride = g.qkv_stride,
          .o = g.o,
          .lse = g.lse,
          .d_o = g.d_o,
          .dq = g.dq,
          .dk = g.dk,
          .dv = g.dv,
          .dqkv_stride = g.dqkv_stride,
          .workspace = g.workspace,
          .batch = g.batch,
          .seq_len = g.seq_len,
          .heads = g.heads,
          .kv_heads = g.kv_heads,
          .head_dim = g.head_dim,
          .scale = g.scale,
          .backward = true,
          .deterministic = exec.deterministic};
}

// Null pointers count as aligned: a plan is made without them.
bool aligned(const AttentionForward& g) {
  return g.qkv_stride % 8 == 0 && cuda::aligned16(g.q, g.k, g.v, g.o);
}
bool aligned(const AttentionBackward& g) {
  return (g.qkv_stride | g.dqkv_stride) % 8 == 0 &&
         cuda::aligned16(g.q, g.k, g.v, g.o, g.d_o, g.dq, g.dk, g.dv, g.workspace);
}

enum class Path { kCudnn, kTensorCores, kCudaCores };

// The rule of kernels/attention.h. An empty one goes nowhere.
template <class Args>
Path path_of(const CudaExec& exec, const Args& g) {
  if (g.dtype != DType::kBf16 || g.head_dim % 8 != 0 || !aligned(g) || exec.cc_major < 8) return Path::kCudaCores;
  if (exec.use_cudnn && g.batch * g.seq_len > 0 && cuda::sdpa_takes(exec, sdpa_of(exec, g))) return Path::kCudnn;
  return g.head_dim <= 128 ? Path::kTensorCores : Path::kCudaCores;
}
template <class Args>
const char* name_of_path(const CudaExec& exec, const Args& args) {
  const Path path = path_of(exec, args);
  return path == Path::kCudnn ? "cuDNN" : path == Path::kTensorCores ? "own, tensor cores" : "own, CUDA cores";
}

// Bytes of the own kernels, or of cuDNN's if that is more: misaligned pointers change the path, not the need.
template <class Args>
size_t needed_bytes(const CudaExec& exec, const Args& args, size_t own_bytes) {
  check_sizes(args);
  XCE_CHECK(args.head_dim <= kMaxHeadDim,
            str(std::is_same_v<Args, AttentionForward> ? "AttentionForward" : "AttentionBackward",
                ".head_dim <= ", kMaxHeadDim, " on CUDA"),
            args.head_dim);
  if (path_of(exec, args) != Path::kCudnn) return own_bytes;
  return std::max(own_bytes, cuda::sdpa_workspace_bytes(exec, sdpa_of(exec, args)));
}

}  // namespace

const char* attention_kernels(const CudaExec& exec, const AttentionForward& args) {
  return name_of_path(exec, args);
}
const char* attention_kernels(const CudaExec& exec, const AttentionBackward& args) {
  return name_of_path(exec, args);
}

size_t workspace_bytes(const CudaExec& exec, const AttentionForward& args) {
  return needed_bytes(exec, args, 0);
}
size_t workspace_bytes(const CudaExec& exec, const AttentionBackward& args) {
  Carver carver(nullptr);
  visit_dtype(args.dtype,
              [&]<class T>(std::type_identity<T>) { carver.take<Accum<T>>(args.batch * args.heads * args.seq_len); });
  return needed_bytes(exec, args, carver.used_bytes());
}

void launch(const CudaExec& exec, const AttentionForward& args) {
  check_args(args, workspace_bytes(exec, args));
  if (args.batch == 0 || args.seq_len == 0) return;
  switch (path_of(exec, args)) {
    case Path::kCudnn:
      return cuda::sdpa(exec, sdpa_of(exec, args));
    case Path::kTensorCores:
      return args.head_dim <= 64 ? forward_on_tensor_cores<64>(exec, args) : forward_on_tensor_cores<128>(exec, args);
    case Path::kCudaCores:
      return visit_dtype(args.dtype, [&]<class T>(std::type_identity<T>) { forward_simt<T>(exec, args); });
  }
}
void launch(const CudaExec& exec, const AttentionBackward& args) {
  check_args(args, workspace_bytes(exec, args));
  if (args.batch == 0 || args.seq_len == 0) return;
  switch (path_of(exec, args)) {
    case Path::kCudnn:
      return cuda::sdpa(exec, sdpa_of(exec, args));
    case Path::kTensorCores: {
      const float* delta = delta_of<Bf16>(exec, args);
      return args.head_dim <= 64 ? backward_on_tensor_cores<64>(exec, args, delta)
                                 : backward_on_tensor_cores<128>(exec, args, delta);
    }
    case Path::kCudaCores:
      return visit_dtype(args.dtype, [&]<class T>(std::type_identity<T>) { backward_simt<T>(exec, args); });
  }
}

}  // namespace xce

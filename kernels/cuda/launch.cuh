// Words of the host side of CUDA kernels: grid sizes and the choice between vector and scalar access.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "kernels/base/cuda_exec.h"
#include "kernels/base/dtype.h"

namespace xce::cuda {

constexpr int kThreads = 256;
constexpr int kBlocksPerSm = 8;       // of kThreads: every thread that an SM holds
constexpr int64_t kMaxGridY = 65535;  // CUDA's limit

constexpr int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}
// Blocks for a grid-stride loop over `items`, one to a thread: never more than fit on the device at once.
inline unsigned grid_for(const CudaExec& exec, int64_t items) {
  return static_cast<unsigned>(
      std::clamp<int64_t>(ceil_div(items, kThreads), 1, int64_t{exec.sm_count} * kBlocksPerSm));
}
// Threads of a block that shares out `items`: whole warps, at most kThreads.
inline unsigned threads_for(int64_t items) {
  return static_cast<unsigned>(std::clamp<int64_t>(ceil_div(items, 32) * 32, 32, kThreads));
}

// True when every address can be read 16 bytes at a time. Null counts as aligned.
template <class... Pointers>
bool aligned16(const Pointers*... pointers) {
  return ((reinterpret_cast<uintptr_t>(pointers) | ... | 0) & 15) == 0;
}
// Calls f(std::integral_constant<int, N>) with N = the elements of T in 16 bytes, or 1 when `vectors` is false.
template <class T, class F>
void with_width(bool vectors, F&& f) {
  if (vectors)
    f(std::integral_constant<int, 16 / sizeof(T)>{});
  else
    f(std::integral_constant<int, 1>{});
}

}  // namespace xce::cuda

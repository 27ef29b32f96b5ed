// Where work runs. An op's args struct is the op; launch(const CpuExec&, args) and launch(const CudaExec&, args)
// implement it; run(exec, args) chooses. This is the one device switch of the tree: another device adds its exec to the
// variant here.
#pragma once

#include <cstddef>
#include <type_traits>
#include <variant>

#include "kernels/base/check.h"
#ifdef XCE_WITH_CUDA
#include "kernels/base/cuda_exec.h"
#endif

namespace xce {

class ThreadPool;

// Runs an op on the calling thread and the pool's workers; returns when it is done. Borrowed, never null.
struct CpuExec {
  ThreadPool* pool;
};
// Enqueues an op on a CUDA stream: kernels/base/cuda_exec.h. Without CUDA it stays incomplete and nothing calls its
// launch.
struct CudaExec;

#ifdef XCE_WITH_CUDA
using Exec = std::variant<CpuExec, CudaExec>;
#else
using Exec = std::variant<CpuExec>;
#endif

// True where `launch` takes this device: an op without a CUDA kernel still compiles into a CUDA build.
template <class Device, class Args>
concept HasKernel = std::is_same_v<Device, CpuExec> || requires(const Device& device, const Args& args) {
  launch(device, args);
};

// Error(kRuntime) for an op that has no kernel for the device in `exec`; every op has one for the CPU.
template <class Args>
void run(const Exec& exec, const Args& args) {
  std::visit(
      [&]<class Device>(const Device& device) {
        if constexpr (HasKernel<Device, Args>)
          launch(device, args);
        else
          throw Error(ErrorCode::kRuntime, "this op has no CUDA kernel");
      },
      exec);
}

// Bytes of scratch that run(exec, args) needs in args.workspace, for ops that have one. Pointers in args may be null.
template <class Args>
size_t workspace_bytes(const Exec& exec, const Args& args) {
  return std::visit(
      [&]<class Device>(const Device& device) -> size_t {
        if constexpr (HasKernel<Device, Args>)
          return workspace_bytes(device, args);
        else
          throw Error(ErrorCode::kRuntime, "this op has no CUDA kernel");
      },
      exec);
}

}  // namespace xce

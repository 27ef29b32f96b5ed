// Where work runs. An op's args struct is the op; launch(const CpuExec&, args) implements it; run(exec, args) chooses.
// This is the one device switch of the tree: another device adds its exec to the variant here.
#pragma once

#include <cstddef>
#include <variant>

namespace xce {

class ThreadPool;

// Runs an op on the calling thread and the pool's workers; returns when it is done. Borrowed, never null.
struct CpuExec {
  ThreadPool* pool;
};

using Exec = std::variant<CpuExec>;

template <class Args>
void run(const Exec& exec, const Args& args) {
  std::visit([&](const auto& device) { launch(device, args); }, exec);
}

// Bytes of scratch that run(exec, args) needs in args.workspace, for ops that have one. Pointers in args may be null.
template <class Args>
size_t workspace_bytes(const Exec& exec, const Args& args) {
  return std::visit([&](const auto& device) { return workspace_bytes(device, args); }, exec);
}

}  // namespace xce

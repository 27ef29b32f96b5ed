// Memory that every device of the tests can use, and the GPU if there is one. CMake chooses the file that implements
// it.
#pragma once

#include <cstddef>
#include <vector>

#include "kernels/base/exec.h"

namespace xce::test {

void* allocate(size_t size_bytes);
void release(void* data, size_t size_bytes);
// Empty in a build without CUDA, and on a machine without a GPU (one line says so). Launches have ended when run
// returns.
const std::vector<Exec>& gpu_execs();

template <class T>
struct Allocator {
  using value_type = T;
  Allocator() = default;
  template <class U>
  Allocator(const Allocator<U>&) {}
  T* allocate(size_t n) { return static_cast<T*>(test::allocate(n * sizeof(T))); }
  void deallocate(T* data, size_t n) { release(data, n * sizeof(T)); }
  bool operator==(const Allocator&) const = default;
};
// A std::vector that a GPU can read and write.
template <class T>
using Vector = std::vector<T, Allocator<T>>;

}  // namespace xce::test

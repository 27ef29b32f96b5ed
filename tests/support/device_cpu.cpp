// Without CUDA: ordinary memory, no GPU.
#include <new>

#include "tests/support/device.h"

namespace xce::test {

void* allocate(size_t size_bytes) {
  return ::operator new(size_bytes);
}
void release(void* data, size_t) {
  ::operator delete(data);
}
const std::vector<Exec>& gpu_execs() {
  static const std::vector<Exec> none;
  return none;
}

}  // namespace xce::test

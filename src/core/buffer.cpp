#include "src/core/buffer.h"

namespace xce {

Buffer::Buffer(size_t size_bytes, Memory& memory) : size_bytes_(size_bytes) {
  if (size_bytes > 0) data_ = {memory.allocate(size_bytes), Free{&memory}};
}

HostCopy::HostCopy(Memory& memory, const void* data, size_t size_bytes) : data_(data) {
  if (memory.host_readable()) return;
  copy_ = Buffer(size_bytes);
  memory.copy_out(copy_.data(), data, size_bytes);
  data_ = copy_.data();
}

}  // namespace xce

#include "src/core/buffer.h"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>

#include "kernels/base/check.h"

namespace xce {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;

}  // namespace

void Buffer::Free::operator()(void* p) const {
  std::free(p);
}

Buffer::Buffer(size_t size_bytes) : size_bytes_(size_bytes) {
  if (size_bytes == 0) return;
  bool large = size_bytes >= kHugePage;
  void* p = nullptr;
  if (posix_memalign(&p, large ? kHugePage : 64, size_bytes) != 0)
    throw Error(ErrorCode::kRuntime, str("out of memory: could not allocate ", size_bytes, " bytes"));
  data_.reset(p);
  if (large) madvise(p, size_bytes, MADV_HUGEPAGE);  // a hint: refused without harm where huge pages are off
  std::memset(p, 0, size_bytes);
}

}  // namespace xce

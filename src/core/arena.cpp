#include "src/core/arena.h"

#include <algorithm>

#include "kernels/base/check.h"

namespace xce {

Arena::Arena(void* base, size_t capacity_bytes, Memory& memory)
    : base_(static_cast<char*>(base)), memory_(&memory), capacity_(capacity_bytes) {
  XCE_CHECK(base != nullptr, "an arena base that is not null", "null");
}

size_t Arena::allocate(size_t size_bytes) {
  XCE_CHECK(size_bytes <= SIZE_MAX / 2, "a block of at most half the address space",
            size_bytes);  // rounding cannot wrap
  size_t size = (std::max<size_t>(size_bytes, 1) + kAlign - 1) / kAlign * kAlign;
  size_t offset;
  if (std::optional<size_t> hole = free_.first_fit(size)) {
    offset = *hole;
    Block& block = blocks_.at(offset);
    free_.erase(offset);
    if (block.size > size) {
      blocks_.emplace(offset + size, Block{block.size - size, false});
      free_.insert(offset + size, block.size - size);
    }
    block = Block{size, true};
  } else {
    // A free block at the end grows instead of leaving a hole before the new one.
    bool tail_free = !blocks_.empty() && !blocks_.rbegin()->second.used;
    size_t end = blocks_.empty() ? 0 : blocks_.rbegin()->first + blocks_.rbegin()->second.size;
    offset = tail_free ? blocks_.rbegin()->first : end;
    if (size > capacity_ || offset > capacity_ - size)
      throw Error(ErrorCode::kRuntime, str("arena of ", capacity_, " bytes cannot hold a block of ", size,
                                           " bytes at offset ", offset, ": the memory plan was made for other shapes"));
    if (tail_free) free_.erase(offset);
    blocks_[offset] = Block{size, true};
  }
  in_use_ += size;
  peak_ = std::max(peak_, offset + size);
  return offset;
}

void Arena::release(size_t offset) {
  auto it = blocks_.find(offset);
  XCE_CHECK(it != blocks_.end() && it->second.used, "the offset of a block in use", offset);
  in_use_ -= it->second.size;
  it->second.used = false;
  if (auto next = std::next(it); next != blocks_.end() && !next->second.used) {
    it->second.size += next->second.size;
    free_.erase(next->first);
    blocks_.erase(next);
  }
  if (it != blocks_.begin()) {
    auto before = std::prev(it);
    if (!before->second.used) {
      before->second.size += it->second.size;
      free_.erase(before->first);
      blocks_.erase(it);
      it = before;
    }
  }
  free_.insert(it->first, it->second.size);
}

void Arena::poison_free() {
  if (planning()) return;
  size_t end = 0;
  for (const auto& [offset, block] : blocks_) {
    if (!block.used) memory_->set_bytes(base_ + offset, 0xFF, block.size);
    end = offset + block.size;
  }
  memory_->set_bytes(base_ + end, 0xFF, capacity_ - end);
}

}  // namespace xce

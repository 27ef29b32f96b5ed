// The step's memory: one block, handed out and taken back in program order, so the same shapes give the same addresses
// in every step. Without a block (a dry run) it only counts: the peak of a dry run is exactly the capacity the run
// needs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>

#include "src/core/device.h"
#include "src/core/free_blocks.h"

namespace xce {

class Arena {
 public:
  static constexpr size_t kAlign = 256;

  Arena() = default;  // plans: unlimited, every address is null
  // Hands out [base, base + capacity_bytes) of `memory`, borrowed.
  Arena(void* base, size_t capacity_bytes, Memory& memory = host_memory());

  // First fit by address, in O(log n) of n blocks. Error(kRuntime) with sizes when the capacity is exceeded: the plan
  // was made for other shapes.
  size_t allocate(size_t size_bytes);
  void release(size_t offset);
  void* address(size_t offset) const { return base_ ? base_ + offset : nullptr; }

  bool planning() const { return base_ == nullptr; }
  size_t in_use_bytes() const { return in_use_; }
  size_t peak_bytes() const { return peak_; }  // the highest end of any block so far
  // Fills every free byte with 0xFF (a NaN in each float type): a test that passes then reads nothing it did not write.
  void poison_free();

 private:
  struct Block {
    size_t size;
    bool used;
  };
  std::map<size_t, Block> blocks_;  // by offset; together they cover [0, end), neighbours are never both free
  FreeBlocks free_;                 // the free ones among them
  char* base_ = nullptr;
  Memory* memory_ = nullptr;
  size_t capacity_ = SIZE_MAX, in_use_ = 0, peak_ = 0;
};

// A block of an arena, released with its last owner.
class Storage {
 public:
  Storage(Arena& arena, size_t size_bytes)
      : arena_(&arena), offset_(arena.allocate(size_bytes)), size_bytes_(size_bytes) {}
  ~Storage() { arena_->release(offset_); }
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;

  void* data() const { return arena_->address(offset_); }
  size_t size_bytes() const { return size_bytes_; }

 private:
  Arena* arena_;
  size_t offset_, size_bytes_;
};
using StorageRef = std::shared_ptr<Storage>;

}  // namespace xce

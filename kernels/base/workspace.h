// Carves typed arrays out of one block of scratch. With a null base it only counts: one function gives the size and the
// layout.
#pragma once

#include <cstddef>
#include <cstdint>

namespace xce {

class Carver {
 public:
  static constexpr size_t kAlign = 64;
  explicit Carver(void* base) : base_(static_cast<char*>(base)) {}

  // The next `count` elements of T, 64-byte aligned relative to the base; null while counting.
  template <class T>
  T* take(int64_t count) {
    size_t at = used_;
    used_ += (static_cast<size_t>(count) * sizeof(T) + kAlign - 1) / kAlign * kAlign;
    return base_ ? reinterpret_cast<T*>(base_ + at) : nullptr;
  }
  size_t used_bytes() const { return used_; }

 private:
  char* base_;
  size_t used_ = 0;
};

}  // namespace xce

// Owned memory of a device or the host: 64-byte aligned, zeroed, freed with the object, which the device outlives. The
// only place of the tensor floor that allocates arrays.
#pragma once

#include <cstddef>
#include <memory>
#include <utility>

#include "src/core/device.h"

namespace xce {

class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(size_t size_bytes, Memory& memory = host_memory());
  Buffer(Buffer&& other) noexcept : data_(std::move(other.data_)), size_bytes_(std::exchange(other.size_bytes_, 0)) {}
  Buffer& operator=(Buffer&& other) noexcept {
    data_ = std::move(other.data_);
    size_bytes_ = std::exchange(other.size_bytes_, 0);
    return *this;
  }

  void* data() { return data_.get(); }
  const void* data() const { return data_.get(); }
  size_t size_bytes() const { return size_bytes_; }
  template <class T>
  T* as() {
    return static_cast<T*>(data());
  }

 private:
  struct Free {
    Memory* memory;
    void operator()(void* p) const { memory->release(p); }
  };
  std::unique_ptr<void, Free> data_;
  size_t size_bytes_ = 0;
};

// The bytes of an array as the host reads them: the array itself where the host can, else a copy.
class HostCopy {
 public:
  HostCopy(Memory& memory, const void* data, size_t size_bytes);
  const void* data() const { return data_; }

 private:
  Buffer copy_;
  const void* data_;
};

}  // namespace xce

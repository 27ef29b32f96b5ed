// Owned device memory: 64-byte aligned, zeroed, freed with the object. The only place of the tensor floor that
// allocates arrays.
#pragma once

#include <cstddef>
#include <memory>
#include <utility>

namespace xce {

class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(size_t size_bytes);  // Error(kRuntime) with the size when memory runs out
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
    void operator()(void* p) const;
  };
  std::unique_ptr<void, Free> data_;
  size_t size_bytes_ = 0;
};

}  // namespace xce

// Typed test arrays: values held in a dtype, seen as doubles, guarded at both ends and poisoned with NaN until written.
// Every device of the tests can use them.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "kernels/base/dtype.h"
#include "tests/support/device.h"

namespace xce::test {

class Array {
 public:
  static constexpr size_t kGuardBytes = 64;

  // n elements of NaN, between guard bytes that guards_intact() checks; the first one `skip` elements late.
  Array(DType dtype, int64_t n, int64_t skip = 0)
      : dtype_(dtype),
        n_(n),
        front_(kGuardBytes + skip * size_of(dtype)),
        bytes_(front_ + n * size_of(dtype) + kGuardBytes, 0xA5) {
    for (int64_t i = 0; i < n; ++i) set(i, std::numeric_limits<double>::quiet_NaN());
  }
  // Normal values of the given standard deviation, rounded to the dtype.
  static Array normal(DType dtype, int64_t n, uint64_t seed, double stddev = 1.0) {
    Array a(dtype, n);
    std::mt19937_64 gen(seed);
    std::normal_distribution<double> dist(0.0, stddev);
    for (int64_t i = 0; i < n; ++i) a.set(i, dist(gen));
    return a;
  }
  static Array filled(DType dtype, int64_t n, double value) {
    Array a(dtype, n);
    for (int64_t i = 0; i < n; ++i) a.set(i, value);
    return a;
  }

  void* data() { return bytes_.data() + front_; }
  const void* data() const { return bytes_.data() + front_; }
  int64_t size() const { return n_; }
  DType dtype() const { return dtype_; }
  double operator[](int64_t i) const {
    return visit_loss_dtype(dtype_, [&]<class T>(std::type_identity<T>) {
      T value;
      std::memcpy(&value, bytes_.data() + front_ + i * sizeof(T), sizeof(T));
      return static_cast<double>(value);
    });
  }
  void set(int64_t i, double x) {
    visit_loss_dtype(dtype_, [&]<class T>(std::type_identity<T>) {
      T value = make<T>(x);
      std::memcpy(bytes_.data() + front_ + i * sizeof(T), &value, sizeof(T));
    });
  }
  std::vector<double> values() const {
    std::vector<double> out(n_);
    for (int64_t i = 0; i < n_; ++i) out[i] = (*this)[i];
    return out;
  }
  bool guards_intact() const {
    auto is_guard = [](unsigned char byte) { return byte == 0xA5; };
    return std::all_of(bytes_.begin(), bytes_.begin() + static_cast<int64_t>(front_), is_guard) &&
           std::all_of(bytes_.end() - kGuardBytes, bytes_.end(), is_guard);
  }
  bool same_bits(const Array& other) const { return bytes_ == other.bytes_; }

 private:
  template <class T>
  static T make(double x) {
    if constexpr (sizeof(T) == 2)
      return T(static_cast<float>(x));
    else
      return static_cast<T>(x);
  }
  DType dtype_;
  int64_t n_;
  size_t front_;
  Vector<unsigned char> bytes_;
};

// One value where every device reaches it, between guards.
template <class T>
class Scalar {
 public:
  explicit Scalar(T value) : at_{T{77}, value, T{77}} {}
  T* data() { return &at_[1]; }
  const T* data() const { return &at_[1]; }
  operator T() const { return at_[1]; }
  void set(T value) { at_[1] = value; }
  bool guards_intact() const { return at_[0] == T{77} && at_[2] == T{77}; }

 private:
  Vector<T> at_;
};

}  // namespace xce::test

// What the fuzz target makes calls of: choices from the fuzzer's bytes, and arrays of exactly the size that a call may
// use, so that AddressSanitizer sees every access beside them. Nothing here knows the library's own checks.
#pragma once

#include <xce/xce.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <memory>
#include <string>
#include <vector>

namespace xce::fuzz {

inline const xce_loss* current = nullptr;  // of the call under test, for what a finding prints

// A finding: the fuzzer keeps the input of a process that dies.
inline void expect(bool condition, const char* what, const char* detail = "") {
  if (condition) return;
  std::fprintf(stderr, "fuzz_args: expected %s; %s\n", what, detail);
  if (current) {
    const xce_loss& l = *current;
    std::fprintf(
        stderr,
        "rows %lld vocab %lld shard %lld of %lld dtype %d reduction %d z_loss %g smoothing %g softcap %g scale %g\n"
        "labels %d class weights %d token weights %d probabilities %d of dtype %d upstream %d stride %lld\n",
        static_cast<long long>(l.rows), static_cast<long long>(l.vocab), static_cast<long long>(l.shard_offset),
        static_cast<long long>(l.vocab_global), l.dtype, l.reduction, l.z_loss, l.label_smoothing, l.softcap,
        l.logit_scale, l.labels != nullptr, l.class_weights != nullptr, l.token_weights != nullptr,
        l.probabilities != nullptr, l.probability_dtype, l.upstream != nullptr,
        static_cast<long long>(l.upstream_stride));
  }
  std::abort();
}

// Zeros once the bytes are used up: the plainest choice should be the first.
class Choices {
 public:
  Choices(const uint8_t* data, size_t size) : data_(data), size_(size) {}
  uint64_t bits(int bytes) {
    uint64_t value = 0;
    for (int i = 0; i < bytes; ++i) value = value << 8 | (at_ < size_ ? data_[at_++] : 0);
    return value;
  }
  int64_t below(int64_t n) { return static_cast<int64_t>(bits(1) % static_cast<uint64_t>(n)); }
  bool rarely(int one_in = 16) { return below(one_in) == one_in - 1; }
  template <class T>
  T pick(std::initializer_list<T> values) {
    return values.begin()[below(static_cast<int64_t>(values.size()))];
  }

 private:
  const uint8_t* data_;
  size_t size_, at_ = 0;
};

using Wide = __int128;  // sizes of wrong arguments, too
constexpr Wide kMaxBytes = 1 << 13;

struct Layout {
  Wide rows = 1, cols = 1, ld = 0;  // ld 0: cols; negative: the first row is the last in memory (cols 1)
  Wide stride() const { return ld == 0 ? cols : ld; }
  Wide elements() const {
    if (rows <= 0 || cols <= 0) return 0;
    return (rows - 1) * (ld < 0 ? -ld : stride()) + cols;
  }
};

enum class Role { kIn, kOut, kAdded, kScratch };

// A poison whose value no computation gives: NaN of a payload in every floating type, an absurd integer.
inline void poison(void* to, size_t element, size_t bytes) {
  const uint64_t word = element == 2 ? 0xFFA5FFA5FFA5FFA5u : element == 4 ? 0xFFA5A5A5FFA5A5A5u : 0xFFF5A5A5A5A5A5A5u;
  for (size_t i = 0; i < bytes; ++i)
    static_cast<unsigned char*>(to)[i] = static_cast<unsigned char>(word >> 8 * (i % 8));
}

class Buffer {
 public:
  Buffer(const char* name, const Layout& layout, size_t element, Role role)
      : name_(name), layout_(layout), element_(element), role_(role) {
    bytes_ = static_cast<size_t>(layout.elements()) * element;
    data_.reset(static_cast<unsigned char*>(std::malloc(bytes_)));
    poison(data_.get(), element, bytes_);
  }
  void* data() const {  // of the first row
    return data_.get() + (layout_.ld < 0 && bytes_ > 0 ? (static_cast<size_t>(layout_.elements()) - 1) * element_ : 0);
  }
  unsigned char* begin() const { return data_.get(); }
  size_t bytes() const { return bytes_; }
  size_t element() const { return element_; }
  Role role() const { return role_; }
  void seal() { before_.assign(data_.get(), data_.get() + bytes_); }

  void expect_untouched() const {
    expect(std::equal(before_.begin(), before_.end(), data_.get()), "an array that is as it was", name_);
  }
  // Every element written, nothing between rows.
  void expect_written() const {
    if (role_ == Role::kIn) return expect_untouched();
    if (role_ == Role::kScratch) return;
    const size_t stride = static_cast<size_t>(layout_.stride()), cols = static_cast<size_t>(layout_.cols);
    for (size_t i = 0; i < bytes_ / element_; ++i) {
      const bool same = std::memcmp(before_.data() + i * element_, data_.get() + i * element_, element_) == 0;
      if (i % stride >= cols)
        expect(same, "nothing between the rows of an array", name_);
      else if (role_ == Role::kOut && same)
        expect(false, "every element of a result to be written",
               (std::string(name_) + " at " + std::to_string(i)).c_str());
    }
  }

 private:
  struct Free {
    void operator()(unsigned char* data) const { std::free(data); }
  };
  const char* name_;
  Layout layout_;
  size_t element_, bytes_;
  Role role_;
  std::unique_ptr<unsigned char, Free> data_;
  std::vector<unsigned char> before_;
};

class Arrays {
 public:
  explicit Arrays(Choices& choices) : choices_(choices) {}

  // Points `field` to a new array. Too large to be had: to nothing, or to an odd address, which has to be refused. Now
  // and then the same of others.
  template <class T>
  Buffer* give(T*& field, const char* name, const Layout& layout, size_t element, Role role) {
    const Wide bytes = layout.elements() * static_cast<Wide>(element);
    const bool too_large = bytes > kMaxBytes;
    if (too_large || choices_.rarely(64)) {
      const bool odd = choices_.below(2) != 0;
      any_odd_ = any_odd_ || (odd && bytes > 0);
      any_left_out_ = true;
      field = odd ? reinterpret_cast<T*>(odd_ + 1) : nullptr;
      return nullptr;
    }
    all_.push_back(std::make_unique<Buffer>(name, layout, element, role));
    field = reinterpret_cast<T*>(all_.back()->data());
    return all_.back().get();
  }
  bool any_odd() const { return any_odd_; }
  bool any_left_out() const { return any_left_out_; }
  void seal() {
    for (auto& buffer : all_) buffer->seal();
  }
  void expect_untouched() const {
    for (auto& buffer : all_) buffer->expect_untouched();
  }
  void expect_written() const {
    for (auto& buffer : all_) buffer->expect_written();
  }

 private:
  Choices& choices_;
  alignas(16) unsigned char odd_[16] = {};
  std::vector<std::unique_ptr<Buffer>> all_;
  bool any_odd_ = false, any_left_out_ = false;
};

// Overwrites one word somewhere in a struct of scalars.
template <class Args>
void spoil(Choices& choices, Args& args) {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  unsigned char* bytes = reinterpret_cast<unsigned char*>(&args);
  const size_t at = choices.bits(2) % (sizeof(Args) / 4) * 4;
  if (choices.below(2)) {
    const int32_t value = choices.pick<int32_t>({0, 1, 2, -1, 3, 4, 5, 6, 7, 100, INT32_MAX, INT32_MIN});
    std::memcpy(bytes + at, &value, 4);
    return;
  }
  const size_t wide_at = at / 8 * 8;
  if (choices.below(3) == 0) {
    const double value = choices.pick({0.0, 0.5, 1.0, -0.5, kInf, -kInf, kInf - kInf, 1e-320, 1e31, 1e-31, 1e30, -2.0});
    std::memcpy(bytes + wide_at, &value, 8);
    return;
  }
  const int64_t value = choices.pick<int64_t>({0, 1, 2, -1, 3, 8, 9, 40, 200, int64_t{1} << 31, int64_t{1} << 40,
                                               int64_t{1} << 58, INT64_MAX, INT64_MIN, -3, INT64_MAX / 2});
  std::memcpy(bytes + wide_at, &value, 8);
}

}  // namespace xce::fuzz

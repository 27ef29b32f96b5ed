#include "src/data/loader.h"

#include <algorithm>
#include <bit>
#include <vector>

#include "kernels/base/check.h"
#include "src/core/hash.h"

namespace xce {
namespace {

// Streams of the hash, and the number of Feistel rounds: four suffice for a pseudo-random permutation of large domains
// (Luby and Rackoff 1988), small ones need more.
enum : uint64_t { kShiftStream = 1, kOrderStream = 2 };
constexpr int kRounds = 8;

void check_fill(int64_t first, int64_t count) {
  XCE_CHECK(first >= 0, "a first sample >= 0", first);
  XCE_CHECK(count >= 0, "a count of samples >= 0", count);
}

}  // namespace

KeyedPermutation::KeyedPermutation(uint64_t n, uint64_t key) : n_(n), key_(key) {
  XCE_CHECK(n >= 1 && n <= uint64_t{1} << 62, "a permutation of 1 to 2^62 items", n);
  half_bits_ = std::max(1, (static_cast<int>(std::bit_width(n - 1)) + 1) / 2);
}

uint64_t KeyedPermutation::operator()(uint64_t index) const {
  XCE_CHECK(index < n_, str("an index below ", n_), index);
  const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
  do {  // the network permutes a domain of less than 4 n, so this takes few rounds and ends: a cycle returns to its
        // start
    uint64_t left = index >> half_bits_, right = index & mask;
    for (int round = 0; round < kRounds; ++round) {
      uint64_t mixed = left ^ (mix64(key_ + static_cast<uint64_t>(round), right) & mask);
      left = right;
      right = mixed;
    }
    index = left << half_bits_ | right;
  } while (index >= n_);
  return index;
}

Loader::Loader(TokenSourcePtr source, int64_t seq_len, uint64_t seed)
    : source_(std::move(source)), seq_len_(seq_len), seed_(mix64(seed)) {
  XCE_CHECK(seq_len >= 1, "a sequence length >= 1", seq_len);
  int64_t size = source_->size();
  if (size < seq_len + 1)
    throw Error(ErrorCode::kUsage,
                str(source_->describe(), ": ", size, " tokens are too few for a sequence length of ", seq_len));
  // Windows that fit whatever the start is; a source shorter than that has one, and fewer starts.
  samples_per_epoch_ = std::max<int64_t>(1, size / seq_len - 1);
  shifts_ = std::min(seq_len, size - samples_per_epoch_ * seq_len);
}

int64_t Loader::window_begin(int64_t sample) const {
  XCE_CHECK(sample >= 0, "a sample >= 0", sample);
  uint64_t epoch_key = mix64(seed_, sample / samples_per_epoch_);
  auto shift = static_cast<int64_t>(scale_to(mix64(epoch_key, kShiftStream), shifts_));
  KeyedPermutation order(samples_per_epoch_, mix64(epoch_key, kOrderStream));
  return shift + static_cast<int64_t>(order(sample % samples_per_epoch_)) * seq_len_;
}

void Loader::fill(int64_t first, int64_t count, int32_t* tokens, int32_t* targets) const {
  check_fill(first, count);
  std::vector<int32_t> window(seq_len_ + 1);
  for (int64_t i = 0; i < count; ++i) {
    source_->read(window_begin(first + i), window);
    std::copy_n(window.begin(), seq_len_, tokens + i * seq_len_);
    std::copy_n(window.begin() + 1, seq_len_, targets + i * seq_len_);
  }
}

void Loader::fill_padded(int64_t first, int64_t count, int64_t padding, int32_t* tokens, int32_t* targets) const {
  XCE_CHECK(padding >= 0, "a number of padding rows >= 0", padding);
  fill(first, count, tokens, targets);
  std::fill_n(tokens + count * seq_len_, padding * seq_len_, 0);
  std::fill_n(targets + count * seq_len_, padding * seq_len_, kIgnoreTarget);
}

ValidationWindows::ValidationWindows(TokenSourcePtr source, int64_t seq_len)
    : source_(std::move(source)), seq_len_(seq_len) {
  XCE_CHECK(seq_len >= 1, "a sequence length >= 1", seq_len);
  if (source_->size() < 2)
    throw Error(ErrorCode::kUsage, str(source_->describe(), ": a validation set needs two tokens at least"));
}

int64_t ValidationWindows::count() const {
  return (targets() + seq_len_ - 1) / seq_len_;
}

int64_t ValidationWindows::targets_in(int64_t first, int64_t count) const {
  check_fill(first, count);
  return std::clamp<int64_t>(targets() - first * seq_len_, 0, count * seq_len_);
}

void ValidationWindows::fill(int64_t first, int64_t count, int32_t* tokens, int32_t* targets) const {
  check_fill(first, count);
  std::vector<int32_t> window(seq_len_ + 1);
  for (int64_t i = 0; i < count; ++i) {
    int64_t real = targets_in(first + i, 1);
    if (real > 0) source_->read((first + i) * seq_len_, std::span(window).first(real + 1));
    int32_t* token_row = tokens + i * seq_len_;
    int32_t* target_row = targets + i * seq_len_;
    std::copy_n(window.begin(), real, token_row);
    std::copy_n(window.begin() + 1, real, target_row);
    std::fill_n(token_row + real, seq_len_ - real, 0);
    std::fill_n(target_row + real, seq_len_ - real, kIgnoreTarget);
  }
}

}  // namespace xce

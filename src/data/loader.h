// The order of training samples, a pure function of (seed, epoch, index): no state to save, the same for every world
// size and micro-batch, any sample at once.
//
// An epoch cuts the source into windows of seq_len + 1 tokens at stride seq_len, from a start drawn per epoch in [0,
// seq_len), and visits them in an order drawn per epoch. Each window comes exactly once; a window's targets are its
// tokens shifted by one. The tail: fewer than 2 * seq_len tokens at the two ends of the source, others in each epoch,
// take no part.
#pragma once

#include <cstdint>

#include "src/data/source.h"

namespace xce {

inline constexpr int32_t kIgnoreTarget = -100;  // the loss skips such rows

// A bijection of [0, n), keyed: a Feistel network over the next power of four, walked until it lands inside (Black and
// Rogaway 2002). Takes no memory.
class KeyedPermutation {
 public:
  KeyedPermutation(uint64_t n, uint64_t key);
  uint64_t operator()(uint64_t index) const;  // index < n

 private:
  uint64_t n_, key_;
  int half_bits_;
};

class Loader {
 public:
  // A source of fewer than seq_len + 1 tokens is kUsage.
  Loader(TokenSourcePtr source, int64_t seq_len, uint64_t seed);

  int64_t seq_len() const { return seq_len_; }
  int64_t samples_per_epoch() const { return samples_per_epoch_; }
  // Where in the source the window of a sample begins; sample = epoch * samples_per_epoch + index, >= 0.
  int64_t window_begin(int64_t sample) const;
  // Samples [first, first + count) into tokens and targets, (count, seq_len) each. Thread-safe.
  void fill(int64_t first, int64_t count, int32_t* tokens, int32_t* targets) const;
  // The same, then `padding` rows of token 0 with ignored targets: tokens and targets are (count + padding, seq_len).
  void fill_padded(int64_t first, int64_t count, int64_t padding, int32_t* tokens, int32_t* targets) const;

 private:
  TokenSourcePtr source_;
  int64_t seq_len_, samples_per_epoch_, shifts_;
  uint64_t seed_;
};

// Consecutive windows over a validation set: every token but the first is a target exactly once. The last window is
// padded with token 0 and ignored targets, as are windows past the end.
class ValidationWindows {
 public:
  ValidationWindows(TokenSourcePtr source, int64_t seq_len);  // fewer than two tokens: kUsage

  int64_t count() const;                                   // windows
  int64_t targets() const { return source_->size() - 1; }  // in all of them
  int64_t targets_in(int64_t first, int64_t count) const;  // in windows [first, first + count)
  void fill(int64_t first, int64_t count, int32_t* tokens,
            int32_t* targets) const;  // (count, seq_len) each; thread-safe

 private:
  TokenSourcePtr source_;
  int64_t seq_len_;
};

}  // namespace xce

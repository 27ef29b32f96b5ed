// What cross-entropy over given logits refuses, on every device.
#pragma once

#include "kernels/cross_entropy/cross_entropy.h"
#include "kernels/cross_entropy/loss_rows.h"

namespace xce::loss {

inline void check(const CrossEntropyInputs& in, const LossOptions& options, const LossOutputs& out) {
  check(in.targets, options, out, in.rows, in.vocab);
  XCE_CHECK(in.rows >= 0, "cross-entropy rows >= 0", in.rows);
  XCE_CHECK(in.vocab >= 1, "cross-entropy vocab >= 1", in.vocab);
  XCE_CHECK(in.ld == 0 || in.ld >= in.vocab, "ld 0 or >= vocab", in.ld);
  XCE_CHECK(in.shard_offset >= 0, "shard_offset >= 0", in.shard_offset);
  XCE_CHECK(in.rows == 0 || in.logits, "logits", "null");
}

inline bool is_whole_vocab(const CrossEntropyInputs& in) {
  return in.shard_offset == 0 && in.vocab_global <= in.vocab;
}
inline void check_whole_vocab(const CrossEntropyInputs& in) {
  XCE_CHECK(is_whole_vocab(in), "the whole vocabulary, or a shard's statistics alone",
            str("a shard of ", in.vocab_global, " labels"));
}

// The leading dimension of dlogits, which may be the logits. Without rows nothing of them matters.
inline int64_t dlogits_ld(const CrossEntropyInputs& in, const void* dlogits, int64_t ld) {
  XCE_CHECK(in.rows == 0 || dlogits, "dlogits", "null");
  XCE_CHECK(ld == 0 || ld >= in.vocab, "ld_dlogits 0 or >= vocab", ld);
  XCE_CHECK(in.rows == 0 || dlogits != in.logits || (ld ? ld : in.vocab) == (in.ld ? in.ld : in.vocab),
            "equal leading dimensions of logits and of the dlogits that overwrite them", ld);
  return ld ? ld : in.vocab;
}

}  // namespace xce::loss

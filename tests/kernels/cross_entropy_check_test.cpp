// What cross-entropy over given logits refuses, and that a call without rows may be anything that rows would forbid.
#include "kernels/cross_entropy/cross_entropy_check.h"

#include <gtest/gtest.h>

namespace xce {
namespace {

struct Call {
  float logits[12] = {};
  int32_t labels[2] = {};
  CrossEntropyInputs in{.logits = logits, .targets = {.index = labels}, .rows = 2, .vocab = 5, .dtype = DType::kF32};
};

TEST(CrossEntropyCheck, DlogitsOverLogitsHaveTheirLeadingDimension) {
  Call call;
  EXPECT_EQ(loss::dlogits_ld(call.in, call.logits, 0), 5);
  call.in.ld = 6;
  EXPECT_EQ(loss::dlogits_ld(call.in, call.logits, 6), 6);
  EXPECT_THROW(loss::dlogits_ld(call.in, call.logits, 0), Error);
  EXPECT_THROW(loss::dlogits_ld(call.in, nullptr, 6), Error);
  EXPECT_THROW(loss::dlogits_ld(call.in, call.labels, 4), Error);
  call.in.rows = 0;
  EXPECT_EQ(loss::dlogits_ld(call.in, call.logits, 0), 5);
  EXPECT_EQ(loss::dlogits_ld(call.in, nullptr, 7), 7);
}

TEST(CrossEntropyCheck, Inputs) {
  const Call good;
  loss::check(good.in, {}, {});
  auto refused = [&](auto spoil) {
    Call call;
    spoil(call.in);
    EXPECT_THROW(loss::check(call.in, {}, {}), Error);
  };
  refused([](CrossEntropyInputs& in) { in.rows = -1; });
  refused([](CrossEntropyInputs& in) { in.vocab = 0; });
  refused([](CrossEntropyInputs& in) { in.ld = 4; });
  refused([](CrossEntropyInputs& in) { in.shard_offset = -1; });
  refused([](CrossEntropyInputs& in) { in.logits = nullptr; });
}

TEST(CrossEntropyCheck, AShardAloneIsNotTheWholeVocabulary) {
  Call call;
  loss::check_whole_vocab(call.in);
  call.in.vocab_global = 6;
  EXPECT_THROW(loss::check_whole_vocab(call.in), Error);
}

}  // namespace
}  // namespace xce

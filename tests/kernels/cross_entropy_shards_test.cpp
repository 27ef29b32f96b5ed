// Given logits cut over the vocabulary, with every option: statistics merged by hand, uneven and padded shards against
// the whole, in place and not.
#include <gtest/gtest.h>

#include "tests/support/device_test.h"
#include "tests/support/loss_options.h"
#include "tests/support/loss_shards.h"

namespace xce::test {
namespace {

class CrossEntropyShards : public DeviceTest {};
INSTANTIATE_TEST_SUITE_P(Devices, CrossEntropyShards, ::testing::ValuesIn(device_names()), device_name);

TEST_P(CrossEntropyShards, EveryOption) {
  const std::vector<std::vector<Part>> cuts = {
      {{0, 700}}, {{0, 5}, {5, 600}, {605, 95}}, {{0, 256}, {256, 256}, {512, 256}}, {{0, 400}, {400, 400}, {800, 9}}};
  for (DType dtype : {DType::kF32, DType::kBf16, DType::kF16, DType::kF64}) {
    LogitsCase l = LogitsCase::random(dtype, 25, 700, 1);
    l.c.labels[0] = 700, l.c.labels[1] = 701, l.c.labels[2] = -7;
    for (OptionCase& o : cases_of_every_option(dtype, [&] { return l.c; })) {
      o.s.by_terms = true;
      o.s.pad_probabilities = 0;
      const LogitsCase one{o.c, l.y};
      const LossAnswer want = one.answer();
      for (size_t k = 0; k < cuts.size(); ++k) {
        SCOPED_TRACE(str(name_of(dtype), " ", o.name, ", cut ", k));
        o.s.in_place = k % 2 == 1;
        LossShards parts(one, o.s, cuts[k]);
        parts.logits_forward_then_backward(exec_by_turns());
        parts.expect_logits_equal_to(want);
      }
    }
  }
}

// Shares of a label's smoothing are of the whole vocabulary, not of a shard's: a shard without the label knows them.
TEST_P(CrossEntropyShards, SmoothingOfRowsWhoseLabelIsElsewhere) {
  LogitsCase l = LogitsCase::random(DType::kF64, 20, 90, 2);
  for (int64_t i = 0; i < 20; ++i) l.c.labels[i] = i % 30;  // in the first shard
  l.c.label_smoothing = 0.5;
  options::class_weights(l.c, {.dtype = DType::kF64});
  LossShards parts(l, {.dtype = DType::kF64}, {{0, 30}, {30, 50}, {80, 20}});
  parts.logits_forward_then_backward(exec());
  parts.expect_logits_equal_to(l.answer());
}

}  // namespace
}  // namespace xce::test

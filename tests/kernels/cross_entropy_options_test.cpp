// Every option of cross-entropy over given logits alone and in the combinations that meet in one place, for every
// dtype, in place and not; and that what it keeps is O(rows).
#include <gtest/gtest.h>

#include "tests/support/cross_entropy_harness.h"
#include "tests/support/device_test.h"
#include "tests/support/loss_options.h"

namespace xce::test {
namespace {

constexpr DType kDTypes[] = {DType::kF32, DType::kBf16, DType::kF16, DType::kF64};

class CrossEntropyOptions : public DeviceTest {
 protected:
  void check_case(const LogitsCase& l, LossSetup s) const {
    const LossAnswer want = l.answer();
    for (bool in_place : {false, true}) {
      s.in_place = in_place;
      const CrossEntropyRun fresh(l, s);
      CrossEntropyRun two(l, s), both(l, s);
      const Exec device = exec_by_turns();
      two.forward(device);
      expect_loss(two, want, s.dtype);
      EXPECT_TRUE(two.logits.same_bits(fresh.logits));
      two.backward(device);
      expect_gradients(two, want);
      EXPECT_TRUE(two.inputs_equal(fresh));
      both.forward_backward(device);
      expect_loss(both, want, s.dtype);
      expect_gradients(both, want);
      EXPECT_TRUE(both.inputs_equal(fresh));
    }
  }
};
INSTANTIATE_TEST_SUITE_P(Devices, CrossEntropyOptions, ::testing::ValuesIn(device_names()), device_name);

TEST_P(CrossEntropyOptions, EveryOption) {
  for (DType dtype : kDTypes) {
    for (int64_t vocab : {523, 4100}) {  // within one vector loop and beyond a block's columns
      const int64_t rows = vocab > 1000 ? 7 : 37;
      const LogitsCase l = LogitsCase::random(dtype, rows, vocab, 1);
      for (OptionCase& o : cases_of_every_option(dtype, [&] { return l.c; })) {
        SCOPED_TRACE(str(name_of(dtype), " V ", vocab, " ", o.name));
        o.s.by_terms = true;
        o.s.pad_x = 1, o.s.pad_dx = 3;
        check_case({o.c, l.y}, o.s);
      }
    }
  }
}

TEST_P(CrossEntropyOptions, EveryOptionWithinPlainBars) {
  const LogitsCase l = LogitsCase::random(DType::kF32, 50, 300, 2);
  for (OptionCase& o : cases_of_every_option(DType::kF32, [&] { return l.c; })) {
    if (o.c.logit_scale == 0) continue;
    SCOPED_TRACE(o.name);
    check_case({o.c, l.y}, o.s);
  }
}

TEST_P(CrossEntropyOptions, UpstreamOfEveryKind) {
  for (DType dtype : kDTypes) {
    for (double value : {0.0, 1.0, -2.0, 1e-3, 65536.0}) {
      if (dtype == DType::kF16 && value > 1000) continue;  // beyond fp16
      SCOPED_TRACE(str(name_of(dtype), " upstream ", value));
      LogitsCase l = LogitsCase::random(dtype, 23, 130, 3);
      LossSetup s{.dtype = dtype};
      l.c.label_smoothing = 0.1;
      l.c.upstream = {value};
      check_case(l, s);
      options::reduction(l.c, s, Reduction::kNone);
      check_case(l, s);  // an expanded scalar: stride 0
      l.c.upstream.assign(l.c.rows, value);
      l.c.upstream[5] = 0.25, l.c.upstream[6] = 0;
      for (int64_t stride : {1, 4, -2}) {
        s.upstream_stride = stride;
        check_case(l, s);
      }
    }
  }
}

TEST_P(CrossEntropyOptions, UpstreamNanReachesItsRowsAlone) {
  LogitsCase l = LogitsCase::random(DType::kF32, 12, 33, 4);
  LossSetup s;
  l.c.labels[4] = l.c.ignore_index, l.c.labels[5] = 33, l.c.labels[6] = 3;
  options::row_upstream(l.c, s, 2);
  for (int64_t i : {4, 5, 6}) l.c.upstream[i] = std::nan("");
  CrossEntropyRun got(l, s);
  got.forward_backward(exec());
  for (int64_t i = 0; i < l.c.rows; ++i) {
    for (int64_t v = 0; v < l.c.vocab; ++v) {
      ASSERT_EQ(std::isnan(got.dlogit(i, v)), i == 6) << i;
      if (i == 4 || i == 5) {
        ASSERT_EQ(got.dlogit(i, v), 0);
      }
    }
  }
}

TEST_P(CrossEntropyOptions, ArgmaxOfTiesIsTheLowest) {
  for (DType dtype : kDTypes) {
    for (int64_t vocab : {7, 1400, 1401, 20000}) {  // odd: rows at any alignment
      LogitsCase l = LogitsCase::random(dtype, 6, vocab, 5);
      l.c.labels = {0, 1, 2, -100, 3, 4};
      l.y.assign(l.y.size(), 1.5);  // rows 0 and 5: all equal
      for (int64_t i = 1; i < 5; ++i)
        for (int64_t v : {vocab / 3, vocab / 3 + 1, vocab - 1}) l.y[i * vocab + v] = 2;
      CrossEntropyRun got(l, {.dtype = dtype});
      got.forward(exec());
      for (int64_t i = 0; i < 6; ++i) EXPECT_EQ(got.argmax(i), i == 3 ? -1 : i % 5 == 0 ? 0 : vocab / 3) << i;
      EXPECT_EQ(got.n_correct, vocab == 7 ? 2 : 1);
    }
  }
}

TEST_P(CrossEntropyOptions, EntropyOfFlatAndPeakedRows) {
  for (DType dtype : kDTypes) {
    LogitsCase l = LogitsCase::random(dtype, 5, 900, 6);
    l.c.labels = {1, 2, 3, 4, -100};
    l.y.assign(l.y.size(), 3);
    l.y[1 * 900 + 5] = 64;  // one logit far above
    l.y[2 * 900 + 5] = 12;
    for (int64_t v = 450; v < 900; ++v) l.y[3 * 900 + v] = -std::numeric_limits<double>::infinity();
    CrossEntropyRun got(l, {.dtype = dtype});
    got.forward(exec());
    const double bar = dtype == DType::kF64 ? 1e-12 : 1e-5;
    EXPECT_NEAR(got.row_entropy[0], std::log(900.0), bar);
    EXPECT_NEAR(got.row_entropy[1], 0, bar);
    EXPECT_NEAR(got.row_entropy[2], l.answer().entropy[2], bar);
    EXPECT_NEAR(got.row_entropy[3], std::log(450.0), bar);
    EXPECT_EQ(got.row_entropy[4], 0);
  }
}

// What two passes over a row may get wrong: a logit and its gradient share the memory.
TEST_P(CrossEntropyOptions, InPlaceEqualsApart) {
  for (DType dtype : kDTypes) {
    const LogitsCase l = LogitsCase::random(dtype, 9, 20000, 7);
    for (OptionCase& o : cases_of_every_option(dtype, [&] { return l.c; })) {
      const LogitsCase same{o.c, l.y};
      LossSetup apart = o.s, in_place = o.s;
      in_place.in_place = true;
      CrossEntropyRun one(same, apart), other(same, in_place);
      one.forward_backward(exec());
      other.forward_backward(exec());
      EXPECT_TRUE(one.dlogits.same_bits(other.logits)) << name_of(dtype) << " " << o.name;
      EXPECT_TRUE(one.row_loss.same_bits(other.row_loss)) << name_of(dtype) << " " << o.name;
    }
    if (dtype == DType::kF32) break;  // the others by EveryOption
  }
}

TEST_P(CrossEntropyOptions, NanPolicies) {
  LogitsCase l = LogitsCase::random(DType::kF32, 30, 60, 8);
  l.c.labels[3] = 60, l.c.labels[4] = 7;
  check_case(l, {.out_of_range_is_nan = true});
  check_case(l, {});
  l.c.labels.assign(l.c.rows, l.c.ignore_index);
  check_case(l, {.empty_is_nan = true});
  check_case(l, {});
}

TEST_P(CrossEntropyOptions, EveryOutputMayBeNull) {
  LogitsCase l = LogitsCase::random(DType::kF32, 30, 200, 9);
  l.c.z_loss = 0.01, l.c.label_smoothing = 0.1;
  const LossAnswer want = l.answer();
  for (uint32_t bit = 1; bit <= LossCall::kResidual; bit *= 2) {
    for (uint32_t omit : {bit, ~bit}) {
      SCOPED_TRACE(str("without outputs ", omit));
      LossSetup s{.omit = omit};
      CrossEntropyRun got(l, s);
      got.forward_backward(exec());
      expect_loss(got, want, s.dtype);
      expect_gradients(got, want);
    }
  }
}

// 2048 x 128000 logits of fp32 are 1 GB, and so would their log-probabilities be: what backward needs of forward is two
// values per row, and scratch is O(rows) too.
TEST_P(CrossEntropyOptions, ResidualIs8BytesPerRow) {
  const auto scratch = [this](int64_t rows, int64_t vocab, LossOptions options) {
    const int64_t label = 0;
    const CrossEntropyInputs in{.logits = &label,  // sizes are asked for, nothing is read
                                .targets = {.index = &label, .type = IndexType::kI64, .stride = 0},
                                .rows = rows,
                                .vocab = vocab,
                                .dtype = DType::kF32};
    const CrossEntropyForward forward{.in = in, .options = options, .out = {}};
    const CrossEntropyBackward backward{
        .in = in, .options = options, .offset = nullptr, .logsum = nullptr, .upstream = {}, .dlogits = nullptr};
    const CrossEntropyForwardBackward both{.in = in, .options = options, .out = {}, .upstream = {}, .dlogits = nullptr};
    return std::max(
        {workspace_bytes(exec(), forward), workspace_bytes(exec(), backward), workspace_bytes(exec(), both)});
  };
  for (double smoothing : {0.0, 0.1}) {
    const LossOptions options{.z_loss = 0.001, .label_smoothing = smoothing, .softcap = 30};
    const size_t one_row = scratch(1, 128000, options), many = scratch(2048, 128000, options);
    EXPECT_LE(many, 2048 * 128 + (64u << 10));
    EXPECT_LE(one_row, 128u << 10);
    EXPECT_EQ(many, scratch(2048, 1000000, options));  // of the vocabulary's size it knows nothing
  }
  // The residual itself, by a run that has as many rows.
  const LogitsCase l = LogitsCase::random(DType::kF32, 2048, 40, 10);
  CrossEntropyRun got(l, {});
  EXPECT_EQ((got.offset.size() + got.logsum.size()) * static_cast<int64_t>(size_of(got.offset.dtype())), 16384);
  got.forward(exec());
  got.backward(exec());
  expect_gradients(got, l.answer());
}

}  // namespace
}  // namespace xce::test

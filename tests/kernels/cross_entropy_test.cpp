// Cross-entropy over given logits against the fp64 reference, in place and not, and its laws.
#include "kernels/cross_entropy/cross_entropy.h"

#include <gtest/gtest.h>

#include "tests/support/device_test.h"
#include "tests/support/loss_harness.h"

namespace xce::test {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr DType kDTypes[] = {DType::kF32, DType::kBf16, DType::kF64};

struct Logits {
  LossCase c;
  std::vector<double> z;
  static Logits random(DType dtype, int64_t rows, int64_t vocab, uint64_t seed, double spread = 2) {
    Logits l{random_case(dtype, rows, 1, vocab, seed), Array::normal(dtype, rows * vocab, seed + 7, spread).values()};
    return l;
  }
};

// Runs an op in a workspace of its own, poisoned.
template <class Args>
void run_op(const Exec& exec, Args args) {
  args.workspace_size_bytes = workspace_bytes(exec, args);
  Vector<unsigned char> scratch(args.workspace_size_bytes, 0xFF);
  args.workspace = scratch.data();
  run(exec, args);
}

struct Setup {
  DType dtype = DType::kF32;
  Reduction reduction = Reduction::kMean;
  int64_t pad = 0;  // extra columns between rows, of logits and of dlogits
  bool in_place = false;
  bool by_pointer = false;
};

// Runs forward + backward, or both in one call, and compares everything.
class CrossEntropyRun {
 public:
  CrossEntropyRun(const Logits& l, const Setup& s)
      : c_(l.c),
        s_(s),
        accum_(accum_dtype(s.dtype)),
        ld_(l.c.vocab + s.pad),
        upstream_(accum_, std::max<int64_t>(1, std::ssize(l.c.upstream))),
        divisor_(l.c.divisor),
        labels_(l.c.labels.begin(), l.c.labels.end()),
        logits(s.dtype, l.c.rows * ld_),
        dlogits(s.dtype, l.c.rows * ld_),
        loss(accum_, 1),
        row_loss(accum_, l.c.rows),
        offset(accum_, l.c.rows),
        logsum(accum_, l.c.rows) {
    for (int64_t i = 0; i < c_.rows; ++i)
      for (int64_t v = 0; v < c_.vocab; ++v) logits.set(i * ld_ + v, l.z[i * c_.vocab + v]);
    for (size_t i = 0; i < c_.upstream.size(); ++i) upstream_.set(i, c_.upstream[i]);
  }
  CrossEntropyInputs inputs() const {
    return {.logits = logits.data(),
            .targets = {.index = labels_.data(), .type = IndexType::kI64, .ignore_index = c_.ignore_index},
            .rows = c_.rows,
            .vocab = c_.vocab,
            .dtype = s_.dtype,
            .ld = s_.pad ? ld_ : 0};
  }
  LossOptions options() const {
    return {.reduction = s_.reduction, .z_loss = c_.z_loss, .denominator = s_.by_pointer ? divisor_.data() : nullptr};
  }
  LossOutputs outputs() {
    return {.loss = loss.data(),
            .loss_total = total.data(),
            .row_loss = row_loss.data(),
            .offset = offset.data(),
            .logsum = logsum.data(),
            .n_valid = n_valid.data(),
            .out_of_range = out_of_range.data()};
  }
  LossUpstream upstream() const {
    if (c_.upstream.empty()) return {};
    return {.gradient = upstream_.data(), .stride = c_.upstream.size() == 1 ? 0 : 1};
  }
  Array& gradient() { return s_.in_place ? logits : dlogits; }
  void forward(const Exec& exec) {
    run_op(exec, CrossEntropyForward{.in = inputs(), .options = options(), .out = outputs()});
  }
  void backward(const Exec& exec) {
    run_op(exec, CrossEntropyBackward{.in = inputs(),
                                      .options = options(),
                                      .offset = offset.data(),
                                      .logsum = logsum.data(),
                                      .upstream = upstream(),
                                      .dlogits = gradient().data(),
                                      .ld_dlogits = s_.pad ? ld_ : 0});
  }
  void forward_backward(const Exec& exec) {
    run_op(exec, CrossEntropyForwardBackward{.in = inputs(),
                                             .options = options(),
                                             .out = outputs(),
                                             .upstream = upstream(),
                                             .dlogits = gradient().data(),
                                             .ld_dlogits = s_.pad ? ld_ : 0});
  }
  double dlogit(int64_t i, int64_t v) { return gradient()[i * ld_ + v]; }
  void expect(const LossAnswer& want) {
    EXPECT_NEAR(loss[0], want.loss, loss_bar(s_.dtype, want.loss, want.max_logit));
    EXPECT_NEAR(total, want.loss, loss_bar(s_.dtype, want.loss, want.max_logit));
    EXPECT_EQ(n_valid, want.n_valid);
    EXPECT_EQ(out_of_range, want.out_of_range);
    std::vector<double> got;
    for (int64_t i = 0; i < c_.rows; ++i) {
      ASSERT_NEAR(row_loss[i], want.row_loss[i], loss_bar(s_.dtype, want.row_loss[i], want.max_logit));
      ASSERT_NEAR(offset[i] + logsum[i], want.lse[i], loss_bar(s_.dtype, want.lse[i], want.max_logit));
      for (int64_t v = 0; v < c_.vocab; ++v) got.push_back(dlogit(i, v));
      for (int64_t v = c_.vocab; v < ld_; ++v) ASSERT_TRUE(std::isnan(dlogit(i, v))) << "padding was written";
    }
    EXPECT_LE(relative_l2(got, want.dlogits), gradient_bar(s_.dtype, want.max_logit));
    EXPECT_TRUE(gradient().guards_intact());
  }

 private:
  const LossCase& c_;
  Setup s_;
  DType accum_;
  int64_t ld_;
  Array upstream_;
  Scalar<double> divisor_;
  Vector<int64_t> labels_;

 public:
  Array logits, dlogits, loss, row_loss, offset, logsum;
  Scalar<double> total{0};
  Scalar<int64_t> n_valid{-1}, out_of_range{-1};
};

void check_case(const Logits& l, Setup s) {
  LossAnswer want = reference_cross_entropy(l.c, l.z);
  for (bool in_place : {false, true}) {
    s.in_place = in_place;
    for (const Exec& exec : all_execs()) {
      CrossEntropyRun two(l, s), both(l, s);
      Array before = two.logits;
      two.forward(exec);
      EXPECT_TRUE(two.logits.same_bits(before));
      two.backward(exec);
      two.expect(want);
      both.forward_backward(exec);
      both.expect(want);
      EXPECT_EQ(both.logits.same_bits(before), !in_place);
    }
  }
}

TEST(CrossEntropy, Shapes) {
  for (DType dtype : kDTypes)
    for (auto [n, v] : {std::pair{1, 1}, {1, 2}, {7, 7}, {127, 513}, {31, 1024}, {31, 1025}, {5, 50257}})
      check_case(Logits::random(dtype, n, v, n + v), {.dtype = dtype});
}

TEST(CrossEntropy, OptionsAndLeadingDimensions) {
  for (DType dtype : kDTypes) {
    for (Reduction reduction : {Reduction::kNone, Reduction::kMean, Reduction::kSum}) {
      Logits l = Logits::random(dtype, 41, 1300, 3);
      l.c.z_loss = 0.001;
      l.c.own_mean = reduction == Reduction::kMean;
      l.c.divisor = 1;
      l.c.labels[3] = 1300, l.c.labels[4] = -1, l.c.labels[5] = std::numeric_limits<int64_t>::min();
      l.c.upstream =
          reduction == Reduction::kNone ? Array::normal(DType::kF32, 41, 4).values() : std::vector<double>{-2};
      check_case(l, {.dtype = dtype, .reduction = reduction, .pad = 3});
    }
    Logits l = Logits::random(dtype, 41, 130, 5);
    l.c.own_mean = false;
    l.c.divisor = 77;
    check_case(l, {.dtype = dtype, .by_pointer = true});
  }
}

TEST(CrossEntropy, ExtremeLogits) {
  for (DType dtype : kDTypes) {
    for (double shift : {-1000.0, 128.0, -8192.0, 8192.0}) {
      Logits l = Logits::random(dtype, 20, 1500, 6);
      for (double& z : l.z) z = shift;
      check_case(l, {.dtype = dtype});
    }
    Logits peaked = Logits::random(dtype, 20, 1500, 7);
    for (int64_t i = 0; i < 20; ++i) peaked.z[i * 1500 + 700] = 96;
    for (int64_t i = 0; i < 20; i += 2) peaked.c.labels[i] = 700;
    check_case(peaked, {.dtype = dtype});
  }
}

TEST(CrossEntropy, OneFiniteLogitAmongMinusInfinity) {
  Logits l = Logits::random(DType::kF32, 4, 2100, 8);
  l.c.labels = {1050, 1050, 1050, -100};
  for (double& z : l.z) z = -kInf;
  for (int64_t i = 0; i < 4; ++i) l.z[i * 2100 + 1050] = -3;
  check_case(l, {});
}

class CrossEntropyDevice : public DeviceTest {};
INSTANTIATE_TEST_SUITE_P(Devices, CrossEntropyDevice, ::testing::ValuesIn(device_names()), device_name);

TEST_P(CrossEntropyDevice, Law3_BitwiseRepeatable) {
  Logits l = Logits::random(DType::kBf16, 100, 1500, 9);
  CrossEntropyRun first(l, {.dtype = DType::kBf16});
  first.forward_backward(exec());
  for (int repeat = 0; repeat < 3; ++repeat) {
    CrossEntropyRun again(l, {.dtype = DType::kBf16});
    again.forward_backward(exec());
    EXPECT_TRUE(again.loss.same_bits(first.loss));
    EXPECT_TRUE(again.dlogits.same_bits(first.dlogits));
  }
}

TEST_P(CrossEntropyDevice, Law5_AllIgnoredOrNoRowsGiveZero) {
  for (int64_t rows : {0, 9}) {
    Logits l = Logits::random(DType::kF32, rows, 50, 10);
    l.c.labels.assign(rows, -100);
    l.z.assign(l.z.size(), kInf);
    CrossEntropyRun got(l, {});
    got.forward_backward(exec());
    EXPECT_EQ(got.loss[0], 0);
    EXPECT_EQ(got.n_valid, 0);
    for (int64_t i = 0; i < got.dlogits.size(); ++i) ASSERT_EQ(got.dlogits[i], 0);
  }
}

TEST_P(CrossEntropyDevice, Law7_NanAndMinusInfinityPoisonTheirOwnRow) {
  Logits l = Logits::random(DType::kF32, 5, 1500, 11);
  l.c.labels = {1, 2, 3, -100, 5};
  l.z[1 * 1500 + 1400] = std::nan("");
  for (int64_t v = 0; v < 1500; ++v) l.z[2 * 1500 + v] = -kInf;
  l.z[3 * 1500] = std::nan("");  // ignored
  CrossEntropyRun got(l, {});
  got.forward_backward(exec());
  for (int64_t i = 0; i < 5; ++i) {
    EXPECT_EQ(std::isnan(got.row_loss[i]), i == 1 || i == 2) << i;
    for (int64_t v = 0; v < 1500; ++v) ASSERT_EQ(std::isnan(got.dlogit(i, v)), i == 1 || i == 2) << i;
  }
}

TEST_P(CrossEntropyDevice, WrongGradientsFail) {
  Logits l = Logits::random(DType::kBf16, 300, 1000, 12);
  l.c.upstream = {-2};
  LossAnswer want = reference_cross_entropy(l.c, l.z);
  CrossEntropyRun got(l, {.dtype = DType::kBf16});
  got.forward_backward(exec());
  std::vector<double> values = got.dlogits.values();
  double bar = gradient_bar(DType::kBf16, want.max_logit);
  EXPECT_LE(relative_l2(values, want.dlogits), bar);
  for (double factor : {0.0, -1.0, -0.5}) {  // zeroed, sign-flipped, upstream ignored
    std::vector<double> wrong = values;
    for (double& g : wrong) g *= factor;
    EXPECT_GT(relative_l2(wrong, want.dlogits), bar);
  }
}

// Two shards, the second padded: statistics, merge, loss, then each one's gradient.
TEST_P(CrossEntropyDevice, ShardsEqualTheWhole) {
  Logits l = Logits::random(DType::kF32, 30, 100, 13);
  LossAnswer want = reference_cross_entropy(l.c, l.z);
  CrossEntropyRun whole(l, {});
  Array sets(DType::kF32, 2 * 3 * 30), merged(DType::kF32, 3 * 30), padded(DType::kF32, 30 * 64),
      right(DType::kF32, 30 * 64);
  for (int64_t i = 0; i < 30; ++i)
    for (int64_t v = 64; v < 100; ++v) padded.set(i * 64 + v - 64, l.z[i * 100 + v]);
  CrossEntropyInputs part[2] = {whole.inputs(), whole.inputs()};
  part[0].vocab = 64, part[0].ld = 100, part[0].vocab_global = 100;
  part[1].logits = padded.data(), part[1].vocab = 64, part[1].shard_offset = 64, part[1].vocab_global = 100;
  for (int k : {0, 1}) {
    CrossEntropyForward args{
        .in = part[k], .options = {}, .out = {}, .statistics = static_cast<float*>(sets.data()) + k * 90};
    run_op(exec(), args);
    args.out.loss = whole.loss.data();
    EXPECT_THROW(run_op(exec(), args), Error);
  }
  run(exec(),
      LossMergeStatistics{.sets = sets.data(), .merged = merged.data(), .count = 2, .rows = 30, .dtype = DType::kF32});
  run(exec(), LossFromStatistics{.statistics = merged.data(),
                                 .targets = part[0].targets,
                                 .rows = 30,
                                 .vocab_global = 100,
                                 .dtype = DType::kF32,
                                 .options = {},
                                 .out = whole.outputs()});
  for (int k : {0, 1})
    run_op(exec(), CrossEntropyBackward{.in = part[k],
                                        .options = {},
                                        .offset = whole.offset.data(),
                                        .logsum = whole.logsum.data(),
                                        .upstream = {},
                                        .dlogits = k == 0 ? whole.dlogits.data() : right.data(),
                                        .ld_dlogits = k == 0 ? 100 : 0});
  for (int64_t i = 0; i < 30; ++i) {
    for (int64_t v = 64; v < 100; ++v) whole.dlogits.set(i * 100 + v, right[i * 64 + v - 64]);
    for (int64_t v = 36; v < 64; ++v) ASSERT_EQ(right[i * 64 + v], 0);
  }
  whole.expect(want);
}

}  // namespace
}  // namespace xce::test

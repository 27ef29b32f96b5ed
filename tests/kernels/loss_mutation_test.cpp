// What judges the losses can fail: every result made wrong, every option left out or done twice, is outside the bars,
// at their widest.
#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>

#include <functional>

#include "tests/support/cross_entropy_harness.h"
#include "tests/support/loss_harness.h"
#include "tests/support/loss_options.h"

namespace xce::test {
namespace {

bool fails(const std::function<void()>& judge) {
  ::testing::TestPartResultArray results;
  {
    ::testing::ScopedFakeTestPartResultReporter reporter(
        ::testing::ScopedFakeTestPartResultReporter::INTERCEPT_ONLY_CURRENT_THREAD, &results);
    judge();
  }
  for (int i = 0; i < results.size(); ++i)
    if (results.GetTestPartResult(i).failed()) return true;
  return false;
}

struct Mutation {
  const char* name;
  std::function<void(LossCall&)> spoil;
};
const std::vector<Mutation>& mutations_of_results() {
  static const std::vector<Mutation> all = {
      {"loss", [](LossCall& r) { r.loss.set(0, r.loss[0] * 1.0003); }},
      {"loss of zero", [](LossCall& r) { r.loss.set(0, 0); }},
      {"loss total added to twice", [](LossCall& r) { r.loss_total.set(2 * r.loss_total); }},
      {"z-loss", [](LossCall& r) { r.z_loss.set(0, 2 * r.z_loss[0]); }},
      {"a row's loss", [](LossCall& r) { r.row_loss.set(5, r.row_loss[5] + 0.01); }},
      {"a row's loss unwritten", [](LossCall& r) { r.row_loss.set(5, std::nan("")); }},
      {"an ignored row's loss", [](LossCall& r) { r.row_loss.set(4, 0.01); }},
      {"logsum", [](LossCall& r) { r.logsum.set(5, r.logsum[5] + 0.001); }},
      {"offset", [](LossCall& r) { r.offset.set(5, r.offset[5] - 0.001); }},
      {"row max", [](LossCall& r) { r.row_max.set(5, r.row_max[5] + 0.001); }},
      {"entropy", [](LossCall& r) { r.row_entropy.set(5, r.row_entropy[5] * 1.001); }},
      {"entropy negated", [](LossCall& r) { r.row_entropy.set(5, -r.row_entropy[5]); }},
      {"entropy of zeros", [](LossCall& r) { r.row_entropy.set(5, 0); }},
      {"argmax", [](LossCall& r) { r.set_argmax(5, (r.argmax(5) + 1) % r.vocab()); }},
      {"argmax of an ignored row", [](LossCall& r) { r.set_argmax(4, 0); }},
      {"argmax outside", [](LossCall& r) { r.set_argmax(5, r.vocab()); }},
      {"n_correct", [](LossCall& r) { r.n_correct.set(r.n_correct + 1); }},
      {"n_valid", [](LossCall& r) { r.n_valid.set(r.n_valid - 1); }},
      {"weight sum", [](LossCall& r) { r.weight_sum.set(r.weight_sum * (1 + 1e-6)); }},
      {"weight sum by count", [](LossCall& r) { r.weight_sum.set(static_cast<double>(r.n_valid)); }},
      {"out of range", [](LossCall& r) { r.out_of_range.set(0); }},
      {"first out of range", [](LossCall& r) { r.first_out_of_range.set(8); }},
  };
  return all;
}

LossCase judged_case(DType dtype) {
  LossCase c = random_case(dtype, 60, 8, 300, 1);
  c.labels[4] = c.ignore_index, c.labels[5] = 7, c.labels[9] = 300, c.labels[20] = -1;
  c.z_loss = 0.01;
  options::class_weights(c, {.dtype = dtype});
  return c;
}

TEST(LossMutation, WrongResultsFail) {
  for (DType dtype : {DType::kF32, DType::kBf16, DType::kF16, DType::kF64}) {
    const LossCase c = judged_case(dtype);
    const LossSetup s{.dtype = dtype, .by_terms = true};
    const LossAnswer want = reference_linear_cross_entropy(c);
    const LogitsCase l{c, rounded(dtype, reference_logits(c))};
    const LossAnswer want_plain = l.answer();
    for (const Mutation& mutation : mutations_of_results()) {
      LossRun got(c, s);
      got.forward(cpu_exec(1));
      ASSERT_FALSE(fails([&] { expect_loss(got, want, dtype); })) << mutation.name;
      mutation.spoil(got);
      EXPECT_TRUE(fails([&] { expect_loss(got, want, dtype); })) << mutation.name;
      CrossEntropyRun plain(l, s);
      plain.forward(cpu_exec(1));
      ASSERT_FALSE(fails([&] { expect_loss(plain, want_plain, dtype); })) << mutation.name;
      mutation.spoil(plain);
      EXPECT_TRUE(fails([&] { expect_loss(plain, want_plain, dtype); })) << mutation.name;
    }
  }
}

TEST(LossMutation, WrongGradientsFail) {
  for (DType dtype : {DType::kF32, DType::kBf16, DType::kF16, DType::kF64}) {
    LossCase c = judged_case(dtype);
    c.upstream = {-2};
    const LossSetup s{.dtype = dtype, .by_terms = true};
    const LossAnswer want = reference_linear_cross_entropy(c);
    const LogitsCase l{c, rounded(dtype, reference_logits(c))};
    const LossAnswer want_plain = l.answer();
    LossRun got(c, s);
    CrossEntropyRun plain(l, s);
    got.forward_backward(cpu_exec(1));
    plain.forward_backward(cpu_exec(1));
    ASSERT_FALSE(fails([&] { expect_gradients(got, want); }));
    ASSERT_FALSE(fails([&] { expect_gradients(plain, want_plain); }));
    for (double factor : {0.0, -1.0, -0.5, 0.97}) {  // zeroed, sign-flipped, upstream ignored, wrong denominator
      for (Array* a : {&got.dx, &got.dweight, &got.dbias}) {
        const Array right = *a;
        for (int64_t i = 0; i < a->size(); ++i) a->set(i, factor * right[i]);
        EXPECT_TRUE(fails([&] { expect_gradients(got, want); })) << name_of(dtype) << " times " << factor;
        *a = right;
      }
      const Array right = plain.dlogits;
      for (int64_t i = 0; i < right.size(); ++i) plain.dlogits.set(i, factor * right[i]);
      EXPECT_TRUE(fails([&] { expect_gradients(plain, want_plain); })) << name_of(dtype) << " times " << factor;
      plain.dlogits = right;
    }
    got.dweight.set(7, std::nan(""));
    plain.dlogits.set(7, std::nan(""));
    EXPECT_TRUE(fails([&] { expect_gradients(got, want); })) << "an element is not written";
    EXPECT_TRUE(fails([&] { expect_gradients(plain, want_plain); })) << "an element is not written";
  }
}

// A kernel that leaves an option out, or mistakes it, computes another case's answer.
struct Mistake {
  const char* name;
  std::function<void(LossCase&)> make;  // leaves a case alone that it is no mistake of
};
const std::vector<Mistake>& mistakes() {
  static const std::vector<Mistake> all = {
      {"class weights left out", [](LossCase& c) { c.class_weights.clear(); }},
      {"token weights left out",
       [](LossCase& c) {
         for (double& u : c.token_weights) u = u == 0 ? 0 : 1;
       }},
      {"smoothing left out", [](LossCase& c) { c.label_smoothing = 0; }},
      {"smoothing over half of the vocabulary",
       [](LossCase& c) {
         if (c.label_smoothing < 0.5) c.label_smoothing *= 2;
       }},
      {"softcap left out", [](LossCase& c) { c.softcap = 0; }},
      {"logit scale left out", [](LossCase& c) { c.logit_scale = 1; }},
      {"z-loss left out", [](LossCase& c) { c.z_loss = 0; }},
      {"z-loss twice", [](LossCase& c) { c.z_loss *= 2; }},
      {"bias left out", [](LossCase& c) { c.bias.clear(); }},
      {"bias twice",
       [](LossCase& c) {
         for (double& b : c.bias) b *= 2;
       }},
      {"upstream left out", [](LossCase& c) { c.upstream.clear(); }},
      {"upstream of the first row alone",
       [](LossCase& c) {
         if (!c.upstream.empty()) c.upstream.assign(1, c.upstream[0]);
       }},
      {"probabilities taken for normalised",
       [](LossCase& c) {
         for (int64_t i = 0; i < c.rows && !c.probabilities.empty(); ++i) {
           double sum = 0;
           for (int64_t v = 0; v < c.vocab; ++v) sum += c.probabilities[i * c.vocab + v];
           for (int64_t v = 0; v < c.vocab; ++v) c.probabilities[i * c.vocab + v] /= sum;
         }
       }},
      {"the mean of a given denominator by its own",
       [](LossCase& c) {
         if (!c.own_mean && c.divisor > 1) c.own_mean = true;
       }},
  };
  return all;
}
bool same(const LossCase& a, const LossCase& b) {
  return a.class_weights == b.class_weights && a.token_weights == b.token_weights && a.bias == b.bias &&
         a.label_smoothing == b.label_smoothing && a.softcap == b.softcap && a.logit_scale == b.logit_scale &&
         a.z_loss == b.z_loss && a.upstream == b.upstream && a.probabilities == b.probabilities &&
         a.own_mean == b.own_mean;
}

TEST(LossMutation, OptionsLeftOutOrMistakenFail) {
  for (DType dtype : {DType::kF32, DType::kBf16}) {
    std::vector<int> made(mistakes().size(), 0);
    for (OptionCase& o : cases_of_every_option(dtype, [&] { return random_case(dtype, 37, 16, 120, 2); })) {
      o.s.by_terms = true;
      if (o.c.logit_scale == 0) continue;  // no logits, and nothing that depends on them
      LossRun got(o.c, o.s);
      got.forward_backward(cpu_exec(1));
      for (size_t k = 0; k < mistakes().size(); ++k) {
        LossCase mistaken = o.c;
        mistakes()[k].make(mistaken);
        if (same(mistaken, o.c)) continue;
        ++made[k];
        const LossAnswer wrong = reference_linear_cross_entropy(mistaken);
        EXPECT_TRUE(fails([&] {
          expect_loss(got, wrong, dtype);
          expect_gradients(got, wrong);
        })) << name_of(dtype)
            << " " << o.name << ": " << mistakes()[k].name;
      }
    }
    for (size_t k = 0; k < made.size(); ++k) EXPECT_GT(made[k], 0) << mistakes()[k].name;
  }
}

}  // namespace
}  // namespace xce::test

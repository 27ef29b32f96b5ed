// Both losses at extreme logits with every option: large shifts, peaked rows, equal logits, -inf where mass is and is
// not.
#include <gtest/gtest.h>

#include "tests/support/cross_entropy_harness.h"
#include "tests/support/device_test.h"
#include "tests/support/loss_harness.h"
#include "tests/support/loss_options.h"

namespace xce::test {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

class LossExtremes : public DeviceTest {
 protected:
  // `change` makes logits extreme: the bias of a head, given logits.
  template <class Change>
  void check_every_option(DType dtype, Change change) const {
    auto make = [&] {
      LossCase c = random_case(dtype, 20, 8, 300, 1);
      change(c.bias);
      c.bias = rounded(dtype, c.bias);
      return c;
    };
    for (OptionCase& o : cases_of_every_option(dtype, make)) {
      SCOPED_TRACE(str(name_of(dtype), " ", o.name));
      o.s.by_terms = true;
      const LossAnswer want = reference_linear_cross_entropy(o.c);
      for (double factor : {0.0, 6.0}) {
        o.s.budget_factor = factor;
        const Exec device = factor == 0 ? exec_by_turns() : one_thread();
        LossRun both(o.c, o.s), two(o.c, o.s);
        both.forward_backward(device);
        two.forward(device);
        two.backward(device);
        for (const LossRun* got : {&both, &two}) {
          expect_loss(*got, want, dtype);
          expect_gradients(*got, want);
        }
      }
      const LogitsCase l{o.c, rounded(dtype, reference_logits(o.c))};
      const LossAnswer of_logits = l.answer();
      const Exec device = exec_by_turns();
      CrossEntropyRun both(l, o.s), two(l, o.s);
      both.forward_backward(device);
      two.forward(device);
      two.backward(device);
      for (const CrossEntropyRun* got : {&both, &two}) {
        expect_loss(*got, of_logits, dtype);
        expect_gradients(*got, of_logits);
      }
    }
  }
};
INSTANTIATE_TEST_SUITE_P(Devices, LossExtremes, ::testing::ValuesIn(device_names()), device_name);

TEST_P(LossExtremes, ShiftedLogits) {
  for (auto [dtype, shift] : {std::pair{DType::kF32, 100.0},
                              {DType::kF32, -100.0},
                              {DType::kF32, 1e4},
                              {DType::kF32, -1e4},
                              {DType::kBf16, 1e4},
                              {DType::kBf16, -100.0},
                              {DType::kF16, -1e4},
                              {DType::kF16, 100.0},
                              {DType::kF64, 1e4}})
    check_every_option(dtype, [shift = shift](auto& bias) {
      for (double& b : bias) b += shift;
    });
}

TEST_P(LossExtremes, PeakedRows) {
  for (double gap : {60.0, 700.0}) check_every_option(DType::kF32, [gap](auto& bias) { bias[133] = gap; });
  check_every_option(DType::kF64, [](auto& bias) { bias[133] = 700; });
}

// Mass on a logit of -inf is an infinite loss, as in PyTorch, of a finite gradient.
TEST_P(LossExtremes, MassOnMinusInfinity) {
  for (bool by_probabilities : {false, true}) {
    LogitsCase l = LogitsCase::random(DType::kF32, 6, 300, 2);
    LossSetup s;
    l.c.labels = {1, 2, 3, 4, 5, 6};
    l.c.label_smoothing = 0.1;
    if (by_probabilities) options::probabilities(l.c, s, DType::kF32);
    l.y[0 * 300 + 77] = -kInf;
    const LossAnswer want = l.answer();
    ASSERT_EQ(want.row_loss[0], kInf);
    CrossEntropyRun both(l, s), two(l, s);
    both.forward_backward(exec());
    two.forward(exec());
    two.backward(exec());
    for (const CrossEntropyRun* got : {&both, &two}) {
      EXPECT_EQ(got->row_loss[0], kInf);
      EXPECT_EQ(got->loss[0], kInf);
      for (int64_t i = 1; i < 6; ++i) EXPECT_NEAR(got->row_loss[i], want.row_loss[i], 1e-4);
      EXPECT_NEAR(got->row_entropy[0], want.entropy[0], 1e-4);
      expect_gradients(*got, want);
    }
  }
}

// Where no mass is, -inf is only a probability of 0: probabilities of 0, class weights of 0, labels elsewhere.
TEST_P(LossExtremes, MinusInfinityWithoutMass) {
  for (int kind : {0, 1, 2}) {
    LogitsCase l = LogitsCase::random(DType::kF32, 6, 2100, 3);
    LossSetup s;
    l.c.labels = {1, 2, 3, 4, 5, 6};
    if (kind == 0) options::probabilities(l.c, s, DType::kF32);
    if (kind == 1) l.c.label_smoothing = 0.1, l.c.class_weights.assign(2100, 1.0);
    for (int64_t v = 1000; v < 2000; ++v) {
      if (kind == 1) l.c.class_weights[v] = 0;
      for (int64_t i = 0; i < 6; ++i) {
        if (kind == 0) l.c.probabilities[i * 2100 + v] = 0;
        l.y[i * 2100 + v] = -kInf;
      }
    }
    l.c.z_loss = 0.01;
    const LossAnswer want = l.answer();
    CrossEntropyRun both(l, s), two(l, s);
    both.forward_backward(exec());
    two.forward(exec());
    two.backward(exec());
    for (const CrossEntropyRun* got : {&both, &two}) {
      expect_loss(*got, want, DType::kF32);
      expect_gradients(*got, want);
    }
    LossCase head = random_case(DType::kF32, 6, 4, 2100, 4);  // the same by a head whose bias is -inf
    head.labels = l.c.labels, head.probabilities = l.c.probabilities, head.class_weights = l.c.class_weights;
    head.label_smoothing = l.c.label_smoothing;
    for (int64_t v = 1000; v < 2000; ++v) head.bias[v] = -kInf;
    const LossAnswer of_head = reference_linear_cross_entropy(head);
    for (double factor : {0.0, 6.0}) {
      s.budget_factor = factor;
      LossRun got(head, s);
      got.forward_backward(exec());
      expect_loss(got, of_head, DType::kF32);
      expect_gradients(got, of_head);
    }
  }
}

// A cap makes of any logit a finite one, of -inf and inf too; their gradient is 0.
TEST_P(LossExtremes, SoftcapOfInfinity) {
  LogitsCase l = LogitsCase::random(DType::kF32, 4, 300, 5);
  l.c.labels = {7, 8, 9, 10};
  l.c.softcap = 10;
  l.y[0 * 300 + 7] = -kInf, l.y[1 * 300 + 50] = kInf, l.y[2 * 300 + 50] = -kInf;
  const LossAnswer want = l.answer();
  ASSERT_TRUE(std::isfinite(want.loss));
  CrossEntropyRun got(l, {});
  got.forward_backward(exec());
  expect_loss(got, want, DType::kF32);
  expect_gradients(got, want);
  for (auto [i, v] : {std::pair{0, 7}, {1, 50}, {2, 50}}) EXPECT_EQ(got.dlogit(i, v), 0);
}

}  // namespace
}  // namespace xce::test

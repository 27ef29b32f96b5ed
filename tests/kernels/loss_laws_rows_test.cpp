// The laws of the losses (kernels/linear_cross_entropy/README.md) 7 to 9 for every option of both of them.
#include <gtest/gtest.h>

#include "tests/support/cross_entropy_harness.h"
#include "tests/support/device_test.h"
#include "tests/support/errors.h"
#include "tests/support/loss_harness.h"
#include "tests/support/loss_options.h"

namespace xce::test {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
class LossRowLaws : public DeviceTest {};
INSTANTIATE_TEST_SUITE_P(Devices, LossRowLaws, ::testing::ValuesIn(device_names()), device_name);

constexpr double kKept = 1000, kRecomputed = 6;  // times the least budget

// A row whose label's weight is zero has no loss to be poisoned.
void give_weight(LossCase& c, int64_t row) {
  if (!c.labels.empty()) c.labels[row] = 3;
  if (!c.class_weights.empty()) c.class_weights[3] = 1;
}

TEST_P(LossRowLaws, Law7_ANanRowPoisonsItselfAloneWithEveryOption) {
  for (OptionCase& o : every_option(DType::kF32, 30, 8, 600, 12)) {
    SCOPED_TRACE(o.name);
    give_weight(o.c, 17);
    const LossAnswer want = reference_linear_cross_entropy(o.c);
    const double bar = 1e-5 * norm(want.dx) + 1e-30;
    LossCase poisoned = o.c;
    poisoned.x[17 * o.c.hidden + 2] = std::nan("");
    for (double factor : {kKept, kRecomputed}) {
      o.s.budget_factor = factor;
      LossRun got(poisoned, o.s);
      got.forward_backward(factor == kKept ? exec_by_turns() : one_thread());
      EXPECT_TRUE(std::isnan(got.loss[0]));
      EXPECT_EQ(got.n_valid, want.n_valid);
      for (int64_t i = 0; i < o.c.rows; ++i) {
        EXPECT_EQ(std::isnan(got.row_loss[i]), i == 17) << i;
        EXPECT_TRUE(got.argmax(i) >= -1 && got.argmax(i) < o.c.vocab) << i;
        for (int64_t h = 0; h < o.c.hidden; ++h) {
          if (i == 17)
            ASSERT_TRUE(std::isnan(got.dx[i * o.c.hidden + h]));
          else
            ASSERT_NEAR(got.dx[i * o.c.hidden + h], want.dx[i * o.c.hidden + h], bar) << i;
        }
      }
    }
  }
}

TEST_P(LossRowLaws, Law7_ANanLogitOrARowOfMinusInfinityPoisonsItselfAlone) {
  for (OptionCase& o : every_option(DType::kF32, 20, 1, 600, 13)) {
    SCOPED_TRACE(o.name);
    give_weight(o.c, 5), give_weight(o.c, 17);
    LogitsCase l{o.c, Array::normal(DType::kF32, 20 * 600, 14).values()};
    const LossAnswer want = l.answer();
    const double bar = 1e-5 * norm(want.dlogits) + 1e-30;
    l.y[5 * 600 + 599] = std::nan("");
    if (o.c.softcap == 0) std::fill(l.y.begin() + 17 * 600, l.y.begin() + 18 * 600, -kInf);  // else it is -cap
    CrossEntropyRun both(l, o.s), two(l, o.s);
    both.forward_backward(exec());
    two.forward(exec());
    two.backward(exec());
    for (const CrossEntropyRun* got : {&both, &two}) {
      for (int64_t i = 0; i < 20; ++i) {
        const bool nan = i == 5 || (i == 17 && o.c.softcap == 0);
        EXPECT_EQ(std::isnan(got->row_loss[i]), nan) << i;
        EXPECT_TRUE(got->argmax(i) >= -1 && got->argmax(i) < 600) << i;
        for (int64_t v = 0; v < 600; ++v) {
          ASSERT_EQ(std::isnan(got->dlogit(i, v)), nan) << i;
          if (!nan) {
            ASSERT_NEAR(got->dlogit(i, v), want.dlogits[i * 600 + v], bar) << i;
          }
        }
      }
    }
  }
}

// By its label or by its weight: nothing of x, of logits, of probabilities, of the row's upstream gradient.
TEST_P(LossRowLaws, Law7_NothingOfAnIgnoredRowReachesAnything) {
  for (OptionCase& o : every_option(DType::kF32, 30, 8, 300, 15)) {
    SCOPED_TRACE(o.name);
    for (int64_t row : {7, 8, 20}) {
      const bool by_label = row == 8 && !o.c.labels.empty();
      if (by_label) o.c.labels[row] = o.c.ignore_index;
      if (!by_label && o.c.token_weights.empty()) o.c.token_weights.assign(30, 1);
      if (!by_label) o.c.token_weights[row] = 0;
    }
    LogitsCase l{o.c, Array::normal(DType::kF32, 30 * 300, 16).values()};
    const LossAnswer want = reference_linear_cross_entropy(o.c), want_plain = l.answer();
    LossCase c = o.c;
    for (int64_t row : {7, 8, 20}) {
      std::fill_n(c.x.begin() + row * 8, 8, row == 7 ? kInf : std::nan(""));
      std::fill_n(l.y.begin() + row * 300, 300, row == 7 ? kInf : std::nan(""));
      if (!c.probabilities.empty()) std::fill_n(c.probabilities.begin() + row * 300, 300, std::nan(""));
      if (c.upstream.size() > 1) c.upstream[row] = std::nan("");
    }
    l.c = c;
    for (double factor : {kKept, kRecomputed}) {
      o.s.budget_factor = factor;
      const Exec device = factor == kKept ? exec_by_turns() : one_thread();
      LossRun both(c, o.s), two(c, o.s);
      both.forward_backward(device);
      two.forward(device);
      two.backward(device);
      for (const LossRun* got : {&both, &two}) {
        expect_loss(*got, want, o.s.dtype);
        expect_gradients(*got, want);
      }
    }
    CrossEntropyRun both(l, o.s), two(l, o.s);
    both.forward_backward(exec());
    two.forward(exec());
    two.backward(exec());
    for (const CrossEntropyRun* got : {&both, &two}) {
      expect_loss(*got, want_plain, o.s.dtype);
      expect_gradients(*got, want_plain);
    }
  }
}

LossCase rows_of_case(const LossCase& c, int64_t begin, int64_t end) {
  LossCase part = c;
  part.rows = end - begin;
  auto cut = [&](auto& values, const auto& all, int64_t width) {
    if (!all.empty()) values.assign(all.begin() + begin * width, all.begin() + end * width);
  };
  cut(part.x, c.x, c.hidden), cut(part.labels, c.labels, 1), cut(part.token_weights, c.token_weights, 1);
  cut(part.probabilities, c.probabilities, c.vocab);
  return part;
}

// Micro-batches of unequal weight sums, LossCount first: the whole batch's loss and gradients.
TEST_P(LossRowLaws, Law8_TokenMeanForAnySplitWithClassAndTokenWeights) {
  for (bool by_probabilities : {false, true}) {
    LossCase c = random_case(DType::kF32, 60, 8, 130, 17);
    LossSetup s;
    if (by_probabilities) options::probabilities(c, s, DType::kF32);
    options::class_weights(c, s), options::token_weights(c, s);
    c.label_smoothing = 0.1;
    const LossAnswer want = reference_linear_cross_entropy(c);
    const std::vector<std::pair<int64_t, int64_t>> parts = {{0, 3}, {3, 27}, {27, 58}, {58, 60}};
    Scalar<int64_t> n_valid(-1);
    Scalar<double> weight_sum(-1), total(0);
    for (auto [begin, end] : parts) {
      const LossCase part = rows_of_case(c, begin, end);
      LossRun run_part(part, s);
      run(exec(), LossCount{.targets = run_part.targets(),
                            .rows = part.rows,
                            .vocab_global = part.vocab,
                            .n_valid = n_valid.data(),
                            .weight_sum = weight_sum.data(),
                            .accumulate = begin > 0,
                            .class_weights = run_part.options().class_weights,
                            .token_weights = run_part.options().token_weights,
                            .dtype = s.dtype});
    }
    EXPECT_EQ(n_valid, want.n_valid);
    EXPECT_NEAR(weight_sum, want.weight_sum, 1e-12 * want.weight_sum);
    std::vector<double> dx;
    Array dweight(DType::kF32, c.vocab * c.hidden);
    double mean_of_means = 0;
    for (auto [begin, end] : parts) {
      LossCase part = rows_of_case(c, begin, end);
      mean_of_means += reference_linear_cross_entropy(part).loss / 4;
      LossSetup by_pointer = s;
      options::denominator(part, by_pointer, weight_sum);
      LossRun run_part(part, by_pointer);
      LinearCrossEntropyForwardBackward call{.in = run_part.inputs(),
                                             .options = run_part.options(),
                                             .out = run_part.outputs(),
                                             .upstream = {},
                                             .grad = run_part.gradients(),
                                             .workspace = {}};
      call.out.loss_total = total.data();
      call.grad.dweight = dweight.data();
      call.grad.accumulate_dweight = begin > 0;
      call.grad.dbias = nullptr;
      run_part.launch_with_workspace(exec(), call, call.workspace);
      for (int64_t i = 0; i < run_part.dx.size(); ++i) dx.push_back(run_part.dx[i]);
    }
    const double bar = gradient_bar(DType::kF32, want.max_logit);
    EXPECT_NEAR(total, want.loss, loss_bar(DType::kF32, want.loss, want.max_logit));
    EXPECT_GT(std::fabs(mean_of_means - want.loss), 0.001);  // the parts are uneven enough to tell
    EXPECT_TRUE(close_values(dx, want.dx, DType::kF32, bar, {}));
    EXPECT_TRUE(close(dweight, want.dweight, bar));
  }
}

TEST_P(LossRowLaws, Law9_TheLeastBudgetIsEnoughForEveryOption) {
  for (DType dtype : {DType::kF32, DType::kBf16}) {
    // A launch or two for each tile of each row: fewer of both on a GPU.
    for (OptionCase& o : every_option(dtype, on_gpu() ? 5 : 40, 16, on_gpu() ? 120 : 500, 18)) {
      for (bool in_dtype : {false, true}) {
        SCOPED_TRACE(str(name_of(dtype), " ", o.name, in_dtype ? ", dweight in dtype" : ""));
        o.s.dweight_in_dtype = in_dtype;
        o.s.budget_factor = 1;
        LossRun got(o.c, o.s);
        got.forward_backward(one_thread());
        expect_gradients(got, reference_linear_cross_entropy(o.c));
        LossSetup less = o.s;
        less.budget_factor = 0.999;
        LossRun fails(o.c, less);
        EXPECT_THROW(fails.forward_backward(one_thread()), Error);
      }
    }
  }
}

TEST_P(LossRowLaws, Law9_MisuseOfOptionsIsAnErrorThatNamesIt) {
  LossCase c = random_case(DType::kF32, 20, 8, 50, 19);
  const LogitsCase l{c, Array::normal(DType::kF32, 20 * 50, 20).values()};
  auto expect_error = [&](const std::vector<std::string>& words, auto&& spoil) {
    LossRun run_one(c, {});
    LinearCrossEntropyForwardBackward args{.in = run_one.inputs(),
                                           .options = run_one.options(),
                                           .out = run_one.outputs(),
                                           .upstream = {},
                                           .grad = run_one.gradients(),
                                           .workspace = {}};
    spoil(args);
    EXPECT_TRUE(
        throws_error(ErrorCode::kRuntime, words, [&] { run_one.launch_with_workspace(exec(), args, args.workspace); }));
    CrossEntropyRun plain(l, {});
    CrossEntropyForwardBackward logits_args = plain.both_call();
    logits_args.in.targets = args.in.targets, logits_args.options = args.options;
    logits_args.out.n_correct = args.out.n_correct;
    EXPECT_TRUE(throws_error(ErrorCode::kRuntime, words, [&] { plain.launch_with_workspace(exec(), logits_args); }));
  };
  const Array t = Array::filled(DType::kF32, 20 * 50, 0.02);
  const Scalar<double> d(3);
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  expect_error({"label_smoothing", "1.5"}, [](auto& a) { a.options.label_smoothing = 1.5; });
  expect_error({"label_smoothing", "-0.1"}, [](auto& a) { a.options.label_smoothing = -0.1; });
  expect_error({"label_smoothing", "nan"}, [](auto& a) { a.options.label_smoothing = kNan; });
  expect_error({"softcap", "-1"}, [](auto& a) { a.options.softcap = -1; });
  expect_error({"softcap", "inf"}, [](auto& a) { a.options.softcap = kInf; });
  expect_error({"logit_scale", "nan"}, [](auto& a) { a.options.logit_scale = kNan; });
  expect_error({"z_loss", "inf"}, [](auto& a) { a.options.z_loss = kInf; });
  expect_error({"denominator"},
               [&](auto& a) { a.options.reduction = Reduction::kSum, a.options.denominator = d.data(); });
  expect_error({"labels", "both"}, [&](auto& a) { a.in.targets.probabilities = t.data(); });
  expect_error({"labels", "neither"}, [&](auto& a) { a.in.targets.index = nullptr; });
  expect_error({"n_correct"}, [&](auto& a) { a.in.targets = {.probabilities = t.data()}; });
  expect_error({"ld_probabilities", "49"}, [&](auto& a) {
    a.in.targets = {.probabilities = t.data(), .ld_probabilities = 49}, a.out.n_correct = nullptr;
  });
  expect_error({"ignore_index", "7"}, [&](auto& a) {
    a.in.targets = {.ignore_index = 7, .probabilities = t.data()}, a.out.n_correct = nullptr;
  });
}

}  // namespace
}  // namespace xce::test

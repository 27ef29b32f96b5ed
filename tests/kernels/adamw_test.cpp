// Several updates against AdamW written out in fp64, with decay by block, the compute copy, and skipped steps.
#include "kernels/adamw.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "tests/support/array.h"
#include "tests/support/compare.h"
#include "tests/support/execs.h"

namespace xce {
namespace {

using test::Array;

const DType kDTypes[] = {DType::kF32, DType::kBf16, DType::kF64};
const int64_t kSizes[] = {0, 1, 7, 31, 64, 127, 1025, 40007};
constexpr double kBeta1 = 0.8, kBeta2 = 0.9, kEps = 1e-6;

struct Arena {
  Array master, m, v, compute;
  test::Vector<float> decay;
  Arena(DType dtype, int64_t n)
      : master(Array::normal(accum_dtype(dtype), n, 1)),
        m(Array::filled(accum_dtype(dtype), n, 0)),
        v(Array::filled(accum_dtype(dtype), n, 0)),
        compute(dtype, n) {
    for (int64_t b = 0; b * AdamW::kBlock < n; ++b) decay.push_back(b % 3 == 1 ? 0.0f : 0.125f * (b % 3 + 1));
  }
  bool same_bits(const Arena& o) const {
    return master.same_bits(o.master) && m.same_bits(o.m) && v.same_bits(o.v) && compute.same_bits(o.compute);
  }
};
Array gradient(DType dtype, int64_t n, int step) {
  return Array::normal(accum_dtype(dtype), n, 100 + step, 0.1 * step);
}

void update(const Exec& exec, Arena& arena, const Array& grad, const StepState& state, bool with_compute) {
  test::Vector<StepState> on_device{state};
  run(exec, AdamW{arena.master.data(), arena.m.data(), arena.v.data(), grad.data(),
                  with_compute ? arena.compute.data() : nullptr, arena.decay.data(), on_device.data(),
                  arena.master.size(), arena.compute.dtype(), kBeta1, kBeta2, kEps});
}

struct Step {
  double lr, grad_scale;
};
const Step kSteps[] = {{1e-2, 1.0}, {2e-2, 0.25}, {5e-3, 1.0}, {1e-2, 0.5}, {0.0, 1.0}};

// One weight's life, by the formula of Loshchilov & Hutter with the moments' bias corrected by division.
struct Weight {
  double w, m = 0, v = 0;
  void update(double g, double decay, Step step, int t) {
    g *= step.grad_scale;
    m = kBeta1 * m + (1 - kBeta1) * g;
    v = kBeta2 * v + (1 - kBeta2) * g * g;
    double m_hat = m / (1 - std::pow(kBeta1, t)), v_hat = v / (1 - std::pow(kBeta2, t));
    w -= step.lr * (m_hat / (std::sqrt(v_hat) + kEps) + decay * w);
  }
};

StepState state_of(const Step& step, int t) {
  StepState state;
  state.lr = step.lr;
  state.grad_scale = step.grad_scale;
  state.updates = t;
  state.apply = 1;
  return state;
}

TEST(AdamW, FollowsTheReferenceOverSeveralSteps) {
  for (DType dtype : kDTypes)
    for (const Exec& exec : test::all_execs())
      for (int64_t n : kSizes) {
        Arena arena(dtype, n);
        std::vector<Weight> weights(n);
        for (int64_t i = 0; i < n; ++i) weights[i].w = arena.master[i];
        int t = 0;
        for (const Step& step : kSteps) {
          ++t;
          Array grad = gradient(dtype, n, t);
          update(exec, arena, grad, state_of(step, t), true);
          std::vector<double> w, m, v;
          for (int64_t i = 0; i < n; ++i) {
            weights[i].update(grad[i], arena.decay[i / AdamW::kBlock], step, t);
            w.push_back(weights[i].w), m.push_back(weights[i].m), v.push_back(weights[i].v);
          }
          double tol = test::tolerance(accum_dtype(dtype));
          EXPECT_TRUE(test::close(arena.master, w, tol)) << name_of(dtype) << " n " << n << " t " << t;
          EXPECT_TRUE(test::close(arena.m, m, tol)) << name_of(dtype) << " n " << n << " t " << t;
          EXPECT_TRUE(test::close(arena.v, v, tol)) << name_of(dtype) << " n " << n << " t " << t;
          EXPECT_TRUE(arena.compute.guards_intact());
        }
      }
}

// The weights barely move in one step, so their change is compared too: a missing update or decay cannot hide in it.
TEST(AdamW, FirstStepMovesByTheFormula) {
  for (DType dtype : kDTypes)
    for (const Exec& exec : test::all_execs()) {
      const int64_t n = 300;
      Arena arena(dtype, n);
      std::vector<double> before = arena.master.values(), moved(n), want(n);
      Array grad = gradient(dtype, n, 1);
      update(exec, arena, grad, state_of({1e-2, 0.5}, 1), false);
      for (int64_t i = 0; i < n; ++i) {
        Weight weight{before[i]};
        weight.update(grad[i], arena.decay[i / AdamW::kBlock], {1e-2, 0.5}, 1);
        moved[i] = arena.master[i] - before[i];
        want[i] = weight.w - before[i];
      }
      EXPECT_LE(test::relative_l2(moved, want), dtype == DType::kF64 ? 1e-12 : 1e-5) << name_of(dtype);
    }
}

TEST(AdamW, ComputeCopyIsTheRoundedMasterAndOptional) {
  for (DType dtype : kDTypes)
    for (const Exec& exec : test::all_execs())
      for (int64_t n : kSizes) {
        Arena with(dtype, n), without(dtype, n), untouched(dtype, n);
        Array grad = gradient(dtype, n, 1), rounded(dtype, n);
        update(exec, with, grad, state_of({1e-2, 1.0}, 1), true);
        update(exec, without, grad, state_of({1e-2, 1.0}, 1), false);
        EXPECT_TRUE(with.master.same_bits(without.master));
        EXPECT_TRUE(without.compute.same_bits(untouched.compute));
        for (int64_t i = 0; i < n; ++i) rounded.set(i, with.master[i]);
        EXPECT_TRUE(with.compute.same_bits(rounded)) << name_of(dtype) << " n " << n;
      }
}

TEST(AdamW, SkippedStepLeavesEveryBit) {
  for (DType dtype : kDTypes)
    for (const Exec& exec : test::all_execs()) {
      Arena arena(dtype, 1025);
      update(exec, arena, gradient(dtype, 1025, 1), state_of({1e-2, 1.0}, 1), true);
      Arena before = arena;
      StepState skip = state_of({1e-2, 1.0}, 1);
      skip.apply = 0;
      update(exec, arena, Array(accum_dtype(dtype), 1025), skip, true);
      EXPECT_TRUE(arena.same_bits(before));
      skip.apply = 1;
      update(exec, arena, gradient(dtype, 1025, 2), skip, true);
      EXPECT_FALSE(arena.same_bits(before));
    }
}

TEST(AdamW, HasTheSameBitsForAnyNumberOfThreads) {
  for (DType dtype : kDTypes) {
    Array grad = gradient(dtype, 40007, 1);
    Arena one(dtype, 40007);
    update(test::cpu_exec(1), one, grad, state_of({1e-2, 0.3}, 3), true);
    for (int threads : {1, 2, 3}) {
      Arena arena(dtype, 40007);
      update(test::cpu_exec(threads), arena, grad, state_of({1e-2, 0.3}, 3), true);
      EXPECT_TRUE(arena.same_bits(one)) << threads;
    }
  }
}

TEST(AdamW, ZeroGradientAndMomentsOnlyDecay) {
  for (const Exec& exec : test::all_execs()) {
    Arena arena(DType::kF64, 64);
    std::vector<double> before = arena.master.values();
    update(exec, arena, Array::filled(DType::kF64, 64, 0), state_of({0.5, 1.0}, 1), true);
    for (int64_t i = 0; i < 64; ++i) EXPECT_NEAR(arena.master[i], before[i] * (1 - 0.5 * 0.125), 1e-15);
  }
}

TEST(AdamW, RejectsBadArguments) {
  Exec exec = test::cpu_exec(1);
  Arena a(DType::kF32, 8);
  StepState state = state_of({1e-2, 1.0}, 1);
  AdamW good{a.master.data(), a.m.data(), a.v.data(), a.m.data(), nullptr, a.decay.data(), &state, 8, DType::kF32};
  auto bad = [&](auto change) {
    AdamW args = good;
    change(args);
    EXPECT_THROW(run(exec, args), Error);
  };
  bad([](AdamW& x) { x.n = -1; });
  bad([](AdamW& x) { x.state = nullptr; });
  bad([](AdamW& x) { x.decay = nullptr; });
  bad([](AdamW& x) { x.beta1 = 1.0; });
  bad([](AdamW& x) { x.beta2 = -0.1; });
  bad([](AdamW& x) { x.eps = -1; });
  state.updates = 0;
  EXPECT_THROW(run(exec, good), Error);
}

}  // namespace
}  // namespace xce

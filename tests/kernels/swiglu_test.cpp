// Against the definition in fp64, finite differences, saturated gates, and the backward in place.
#include "kernels/swiglu.h"

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

struct Shape {
  int64_t rows, cols;
};
const Shape kShapes[] = {{0, 5}, {1, 1}, {7, 31}, {31, 7}, {127, 127}, {300, 128}, {17, 1025}};

double silu(double g) {
  return g / (1 + std::exp(-g));
}
double silu_slope(double g) {
  return (1 + std::exp(-g) + g * std::exp(-g)) / std::pow(1 + std::exp(-g), 2);
}

Array forward(const Exec& exec, const Array& gate_up, int64_t cols) {
  Array y(gate_up.dtype(), gate_up.size() / 2);
  run(exec, SwigluForward{gate_up.data(), y.data(), y.size() / cols, cols, y.dtype()});
  return y;
}
Array backward(const Exec& exec, const Array& gate_up, const Array& dy, int64_t cols) {
  Array out(gate_up.dtype(), gate_up.size());
  run(exec, SwigluBackward{gate_up.data(), dy.data(), out.data(), dy.size() / cols, cols, dy.dtype()});
  return out;
}

TEST(Swiglu, ForwardMatchesTheReference) {
  for (DType dtype : kDTypes)
    for (const Exec& exec : test::all_execs())
      for (auto [rows, cols] : kShapes) {
        Array gate_up = Array::normal(dtype, rows * 2 * cols, 1, 3.0);
        std::vector<double> want(rows * cols);
        for (int64_t r = 0; r < rows; ++r)
          for (int64_t i = 0; i < cols; ++i)
            want[r * cols + i] = silu(gate_up[r * 2 * cols + i]) * gate_up[r * 2 * cols + cols + i];
        Array y = forward(exec, gate_up, cols);
        EXPECT_TRUE(test::close(y, want, test::tolerance(dtype))) << name_of(dtype) << " " << rows << "x" << cols;
        EXPECT_TRUE(forward(exec, gate_up, cols).same_bits(y));
      }
}

TEST(Swiglu, BackwardMatchesTheReferenceAlsoInPlace) {
  for (DType dtype : kDTypes)
    for (const Exec& exec : test::all_execs())
      for (auto [rows, cols] : kShapes) {
        Array gate_up = Array::normal(dtype, rows * 2 * cols, 1, 3.0), dy = Array::normal(dtype, rows * cols, 2);
        std::vector<double> want(rows * 2 * cols);
        for (int64_t r = 0; r < rows; ++r)
          for (int64_t i = 0; i < cols; ++i) {
            int64_t gate = r * 2 * cols + i, up = gate + cols;
            want[gate] = dy[r * cols + i] * gate_up[up] * silu_slope(gate_up[gate]);
            want[up] = dy[r * cols + i] * silu(gate_up[gate]);
          }
        Array got = backward(exec, gate_up, dy, cols);
        EXPECT_TRUE(test::close(got, want, test::tolerance(dtype))) << name_of(dtype) << " " << rows << "x" << cols;
        Array in_place = gate_up;
        run(exec, SwigluBackward{in_place.data(), dy.data(), in_place.data(), rows, cols, dtype});
        EXPECT_TRUE(in_place.same_bits(got));
      }
}

// y once more, beside dy and over it: the forward's bits, and the same gradients.
TEST(Swiglu, BackwardMakesTheForwardsResultAgain) {
  for (DType dtype : kDTypes)
    for (const Exec& exec : test::all_execs())
      for (auto [rows, cols] : kShapes) {
        Array gate_up = Array::normal(dtype, rows * 2 * cols, 1, 3.0), dy = Array::normal(dtype, rows * cols, 2);
        Array want_y = forward(exec, gate_up, cols), want = backward(exec, gate_up, dy, cols);
        Array out(dtype, gate_up.size()), y(dtype, dy.size());
        run(exec, SwigluBackward{gate_up.data(), dy.data(), out.data(), rows, cols, dtype, y.data()});
        EXPECT_TRUE(y.same_bits(want_y)) << name_of(dtype) << " " << rows << "x" << cols;
        EXPECT_TRUE(out.same_bits(want)) << name_of(dtype) << " " << rows << "x" << cols;
        run(exec, SwigluBackward{gate_up.data(), dy.data(), gate_up.data(), rows, cols, dtype, dy.data()});
        EXPECT_TRUE(dy.same_bits(want_y)) << name_of(dtype) << " " << rows << "x" << cols;
        EXPECT_TRUE(gate_up.same_bits(want)) << name_of(dtype) << " " << rows << "x" << cols;
        EXPECT_TRUE(y.guards_intact() && out.guards_intact() && dy.guards_intact() && gate_up.guards_intact());
      }
}

TEST(Swiglu, BackwardMatchesFiniteDifferences) {
  const int64_t cols = 31;
  const double h = 1e-5;
  Exec exec = test::cpu_exec(3);
  Array gate_up = Array::normal(DType::kF64, 2 * 2 * cols, 3), dy = Array::normal(DType::kF64, 2 * cols, 4);
  Array got = backward(exec, gate_up, dy, cols);
  auto objective = [&](const Array& at) {
    Array y = forward(exec, at, cols);
    double sum = 0;
    for (int64_t i = 0; i < y.size(); ++i) sum += y[i] * dy[i];
    return sum;
  };
  for (int64_t i = 0; i < gate_up.size(); ++i) {
    Array up = gate_up, down = gate_up;
    up.set(i, gate_up[i] + h);
    down.set(i, gate_up[i] - h);
    EXPECT_NEAR(got[i], (objective(up) - objective(down)) / (2 * h), 1e-8) << i;
  }
}

TEST(Swiglu, SaturatedGatesStayFinite) {
  for (DType dtype : kDTypes)
    for (const Exec& exec : test::all_execs()) {
      Array gate_up(dtype, 4), dy = Array::filled(dtype, 2, 2.0);
      gate_up.set(0, 200.0), gate_up.set(1, -200.0), gate_up.set(2, 3.0), gate_up.set(3, 3.0);
      EXPECT_TRUE(test::close(forward(exec, gate_up, 2), {600.0, 0.0}, 1e-6));
      EXPECT_TRUE(test::close(backward(exec, gate_up, dy, 2), {6.0, 0.0, 400.0, 0.0}, 1e-6));
    }
}

TEST(Swiglu, RejectsBadArguments) {
  Exec exec = test::cpu_exec(1);
  Array x = Array::normal(DType::kF32, 2, 1), y(DType::kF32, 2);
  EXPECT_THROW(run(exec, SwigluForward{x.data(), y.data(), -1, 1, DType::kF32}), Error);
  EXPECT_THROW(run(exec, SwigluForward{x.data(), nullptr, 1, 1, DType::kF32}), Error);
  EXPECT_THROW(run(exec, SwigluBackward{x.data(), x.data(), y.data(), 1, 0, DType::kF32}), Error);
  EXPECT_THROW(run(exec, SwigluBackward{x.data(), nullptr, y.data(), 1, 1, DType::kF32}), Error);
}

}  // namespace
}  // namespace xce

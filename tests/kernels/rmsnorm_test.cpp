// Against the definition in fp64, finite differences, and the aliases and accumulations that the header allows.
#include "kernels/rmsnorm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "tests/support/array.h"
#include "tests/support/compare.h"
#include "tests/support/execs.h"

namespace xce {
namespace {

using test::Array;

const DType kDTypes[] = {DType::kF32, DType::kBf16, DType::kF64};
constexpr double kEps = 1e-3;

struct Shape {
  int64_t rows, cols;
};
const Shape kShapes[] = {{0, 5},     {1, 1},     {7, 31},   {31, 7},   {127, 127}, {300, 128},
                         {17, 1025}, {2500, 24}, {9, 1032}, {6, 4088}, {5, 12304}, {3, 12305}};

struct Reference {
  std::vector<double> y, rstd, dx, dweight;
};
// Straight from the definition: the backward goes through the Jacobian of x / rms(x).
Reference reference(const Array& x, const Array& weight, const Array& dy) {
  int64_t cols = weight.size(), rows = x.size() / cols;
  Reference ref{std::vector<double>(x.size()), std::vector<double>(rows), std::vector<double>(x.size()),
                std::vector<double>(cols, 0.0)};
  for (int64_t r = 0; r < rows; ++r) {
    double square = 0, projection = 0;
    for (int64_t i = 0; i < cols; ++i) square += x[r * cols + i] * x[r * cols + i];
    double rms = std::sqrt(square / cols + kEps);
    for (int64_t i = 0; i < cols; ++i) projection += dy[r * cols + i] * weight[i] * x[r * cols + i];
    ref.rstd[r] = 1 / rms;
    for (int64_t i = 0; i < cols; ++i) {
      int64_t at = r * cols + i;
      ref.y[at] = x[at] / rms * weight[i];
      ref.dx[at] = dy[at] * weight[i] / rms - x[at] * projection / (cols * rms * rms * rms);
      ref.dweight[i] += dy[at] * x[at] / rms;
    }
  }
  return ref;
}

struct Case {
  Array x, weight, dy;
  Case(DType dtype, Shape s)
      : x(Array::normal(dtype, s.rows * s.cols, 1)),
        weight(Array::normal(dtype, s.cols, 2)),
        dy(Array::normal(dtype, s.rows * s.cols, 3)) {}
  int64_t cols() const { return weight.size(); }
  int64_t rows() const { return x.size() / cols(); }
  DType dtype() const { return x.dtype(); }
};

struct Forward {
  Array y, rstd;
};
Forward forward(const Exec& exec, const Case& c) {
  Forward out{Array(c.dtype(), c.x.size()), Array(accum_dtype(c.dtype()), c.rows())};
  run(exec,
      RmsNormForward{c.x.data(), c.weight.data(), out.y.data(), out.rstd.data(), c.rows(), c.cols(), c.dtype(), kEps});
  return out;
}

struct Backward {
  Array dx, dweight;
  bool accumulate_dx = false, accumulate_dweight = false;
};
Backward backward(const Exec& exec, const Case& c, const Array& rstd, Backward out) {
  RmsNormBackward args{.x = c.x.data(),
                       .weight = c.weight.data(),
                       .rstd = rstd.data(),
                       .dy = c.dy.data(),
                       .dx = out.dx.data(),
                       .dweight = out.dweight.data(),
                       .workspace = nullptr,
                       .workspace_size_bytes = 0,
                       .rows = c.rows(),
                       .cols = c.cols(),
                       .dtype = c.dtype(),
                       .accumulate_dx = out.accumulate_dx,
                       .accumulate_dweight = out.accumulate_dweight};
  Array workspace(DType::kF64, workspace_bytes(exec, args) / 8);
  args.workspace = workspace.data();
  args.workspace_size_bytes = workspace.size() * 8;
  run(exec, args);
  EXPECT_TRUE(workspace.guards_intact());
  return out;
}
Backward unwritten(const Case& c) {
  return {Array(c.dtype(), c.x.size()), Array(accum_dtype(c.dtype()), c.cols())};
}

TEST(RmsNorm, ForwardMatchesTheReference) {
  for (DType dtype : kDTypes)
    for (const Exec& exec : test::all_execs())
      for (Shape shape : kShapes) {
        Case c(dtype, shape);
        Reference ref = reference(c.x, c.weight, c.dy);
        Forward out = forward(exec, c);
        EXPECT_TRUE(test::close(out.y, ref.y, test::tolerance(dtype))) << name_of(dtype) << " " << shape.cols;
        EXPECT_TRUE(test::close(out.rstd, ref.rstd, test::tolerance(accum_dtype(dtype)))) << shape.cols;
      }
}

TEST(RmsNorm, ForwardInPlaceWithoutRstdGivesTheSameBits) {
  for (DType dtype : kDTypes)
    for (const Exec& exec : test::all_execs())
      for (Shape shape : kShapes) {
        Case c(dtype, shape);
        Forward out = forward(exec, c);
        Array y = c.x;
        run(exec, RmsNormForward{y.data(), c.weight.data(), y.data(), nullptr, c.rows(), c.cols(), dtype, kEps});
        EXPECT_TRUE(y.same_bits(out.y)) << name_of(dtype) << " " << shape.cols;
      }
}

TEST(RmsNorm, BackwardMatchesTheReference) {
  for (DType dtype : kDTypes)
    for (const Exec& exec : test::all_execs())
      for (Shape shape : kShapes) {
        Case c(dtype, shape);
        Reference ref = reference(c.x, c.weight, c.dy);
        Backward out = backward(exec, c, forward(exec, c).rstd, unwritten(c));
        // One column leaves dx a small difference of two large terms.
        double tol = test::tolerance(dtype) * (shape.cols == 1 ? 1e3 : 1);
        EXPECT_TRUE(test::close(out.dx, ref.dx, tol)) << name_of(dtype) << " " << shape.rows << "x" << shape.cols;
        EXPECT_TRUE(test::close(out.dweight, ref.dweight, test::tolerance(accum_dtype(dtype)))) << shape.rows;
      }
}

TEST(RmsNorm, BackwardAccumulatesEachOutputOnRequest) {
  for (DType dtype : kDTypes)
    for (const Exec& exec : test::all_execs())
      for (int flags = 1; flags < 4; ++flags) {
        Case c(dtype, {127, 33});
        Reference ref = reference(c.x, c.weight, c.dy);
        Backward out = unwritten(c);
        out.accumulate_dx = flags & 1, out.accumulate_dweight = flags & 2;
        if (out.accumulate_dx) out.dx = Array::normal(dtype, c.x.size(), 7);
        if (out.accumulate_dweight) out.dweight = Array::normal(accum_dtype(dtype), c.cols(), 8);
        for (int64_t i = 0; out.accumulate_dx && i < c.x.size(); ++i) ref.dx[i] += out.dx[i];
        for (int64_t i = 0; out.accumulate_dweight && i < c.cols(); ++i) ref.dweight[i] += out.dweight[i];
        out = backward(exec, c, forward(exec, c).rstd, out);
        EXPECT_TRUE(test::close(out.dx, ref.dx, test::tolerance(dtype))) << name_of(dtype);
        EXPECT_TRUE(test::close(out.dweight, ref.dweight, test::tolerance(accum_dtype(dtype)))) << name_of(dtype);
      }
}

TEST(RmsNorm, BackwardWithDxInDyGivesTheSameBits) {
  for (DType dtype : kDTypes)
    for (const Exec& exec : test::all_execs()) {
      Case c(dtype, {300, 127});
      Array rstd = forward(exec, c).rstd;
      Backward apart = backward(exec, c, rstd, unwritten(c));
      EXPECT_TRUE(backward(exec, c, rstd, unwritten(c)).dweight.same_bits(apart.dweight));
      Array dweight(accum_dtype(dtype), c.cols());
      RmsNormBackward args{c.x.data(), c.weight.data(), rstd.data(), c.dy.data(), c.dy.data(), dweight.data(), nullptr,
                           0,          c.rows(),        c.cols(),    dtype};
      test::Vector<char> workspace(workspace_bytes(exec, args));
      args.workspace = workspace.data();
      args.workspace_size_bytes = workspace.size();
      run(exec, args);
      EXPECT_TRUE(c.dy.same_bits(apart.dx));
      EXPECT_TRUE(dweight.same_bits(apart.dweight));
    }
}

// d/de of sum(dy * y(x + e u)) against sum(dx * u), and the same for the weight.
TEST(RmsNorm, BackwardMatchesFiniteDifferences) {
  Case c(DType::kF64, {3, 31});
  Exec exec = test::cpu_exec(3);
  Backward out = backward(exec, c, forward(exec, c).rstd, unwritten(c));
  auto objective = [&](const Case& at) {
    Array y = forward(exec, at).y;
    double sum = 0;
    for (int64_t i = 0; i < y.size(); ++i) sum += y[i] * at.dy[i];
    return sum;
  };
  const double h = 1e-5;
  for (int64_t i = 0; i < c.x.size() + c.cols(); ++i) {
    bool of_x = i < c.x.size();
    int64_t at = of_x ? i : i - c.x.size();
    Case up = c, down = c;
    (of_x ? up.x : up.weight).set(at, (of_x ? c.x : c.weight)[at] + h);
    (of_x ? down.x : down.weight).set(at, (of_x ? c.x : c.weight)[at] - h);
    EXPECT_NEAR((of_x ? out.dx : out.dweight)[at], (objective(up) - objective(down)) / (2 * h), 1e-8) << i;
  }
}

TEST(RmsNorm, RejectsBadArguments) {
  Exec exec = test::cpu_exec(1);
  Case c(DType::kF32, {2, 4});
  Array y(DType::kF32, 8), rstd(DType::kF32, 2), dweight(DType::kF32, 4);
  EXPECT_THROW(run(exec, RmsNormForward{c.x.data(), c.weight.data(), y.data(), nullptr, -1, 4, DType::kF32}), Error);
  EXPECT_THROW(run(exec, RmsNormForward{c.x.data(), c.weight.data(), y.data(), nullptr, 2, 0, DType::kF32}), Error);
  EXPECT_THROW(run(exec, RmsNormForward{c.x.data(), nullptr, y.data(), nullptr, 2, 4, DType::kF32}), Error);
  RmsNormBackward args{c.x.data(), c.weight.data(), rstd.data(), c.dy.data(), y.data(), dweight.data(), y.data(), 1, 2,
                       4,          DType::kF32};
  try {
    run(exec, args);
    FAIL() << "a workspace of one byte was accepted";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("RmsNormBackward.workspace_size_bytes"), std::string::npos);
  }
}

}  // namespace
}  // namespace xce

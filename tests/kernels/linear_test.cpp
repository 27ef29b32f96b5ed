// Linear forward and backward against plain fp64 sums, in every dtype and on every device.
#include "kernels/linear.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/support/compare.h"
#include "tests/support/execs.h"

namespace xce {
namespace {

using test::Array;

struct Sizes {
  int64_t rows, in, out;
};
constexpr Sizes kSizes[] = {{1, 1, 1},    {7, 1, 31},    {31, 127, 7},   {127, 31, 127},  {1025, 7, 31},
                            {7, 1025, 1}, {31, 7, 1025}, {1, 127, 1025}, {270, 520, 260}, {1025, 127, 31}};
constexpr DType kDTypes[] = {DType::kF32, DType::kBf16, DType::kF64};

std::vector<double> reference_y(const Array& x_array, const Array& w_array, const Sizes& s) {
  std::vector<double> x = x_array.values(), w = w_array.values();
  std::vector<double> y(s.rows * s.out, 0.0);
  for (int64_t r = 0; r < s.rows; ++r)
    for (int64_t o = 0; o < s.out; ++o)
      for (int64_t i = 0; i < s.in; ++i) y[r * s.out + o] += x[r * s.in + i] * w[o * s.in + i];
  return y;
}
std::vector<double> reference_dx(const Array& dy_array, const Array& w_array, const Sizes& s) {
  std::vector<double> dy = dy_array.values(), w = w_array.values();
  std::vector<double> dx(s.rows * s.in, 0.0);
  for (int64_t r = 0; r < s.rows; ++r)
    for (int64_t o = 0; o < s.out; ++o)
      for (int64_t i = 0; i < s.in; ++i) dx[r * s.in + i] += dy[r * s.out + o] * w[o * s.in + i];
  return dx;
}
std::vector<double> reference_dweight(const Array& dy_array, const Array& x_array, const Sizes& s) {
  std::vector<double> dy = dy_array.values(), x = x_array.values();
  std::vector<double> dw(s.out * s.in, 0.0);
  for (int64_t r = 0; r < s.rows; ++r)
    for (int64_t o = 0; o < s.out; ++o)
      for (int64_t i = 0; i < s.in; ++i) dw[o * s.in + i] += dy[r * s.out + o] * x[r * s.in + i];
  return dw;
}
std::vector<double> sum(std::vector<double> a, const Array& b) {
  for (size_t i = 0; i < a.size(); ++i) a[i] += b[i];
  return a;
}

template <class Args>
void run_with_workspace(const Exec& exec, Args args) {
  test::Vector<double> workspace(workspace_bytes(exec, args) / sizeof(double) + 1, std::nan(""));
  args.workspace = workspace.data();
  args.workspace_size_bytes = workspace_bytes(exec, args);
  run(exec, args);
}

// Arrays of one case; outputs of NaN.
struct Case {
  Sizes s;
  DType dtype;
  Array x, w, dy, y, dx, dw;
  Case(Sizes s, DType dtype)
      : s(s),
        dtype(dtype),
        x(Array::normal(dtype, s.rows * s.in, 1)),
        w(Array::normal(dtype, s.out * s.in, 2)),
        dy(Array::normal(dtype, s.rows * s.out, 3)),
        y(dtype, s.rows * s.out),
        dx(dtype, s.rows * s.in),
        dw(accum_dtype(dtype), s.out * s.in) {}
  LinearForward forward() { return {x.data(), w.data(), y.data(), nullptr, 0, s.rows, s.in, s.out, dtype}; }
  LinearBackward backward() {
    return {x.data(), w.data(), dy.data(), dx.data(), dw.data(), nullptr, 0, s.rows, s.in, s.out, dtype};
  }
  // dweight is not rounded to the dtype of the inputs, so its bar is that of the sums.
  double dweight_tolerance() const { return test::tolerance(accum_dtype(dtype)); }
};

std::string name(const Case& c) {
  return str(name_of(c.dtype), " rows ", c.s.rows, " in ", c.s.in, " out ", c.s.out);
}

// A case with what it must give; made once for all tests, which work on copies of the case.
struct Expected {
  Case start;
  std::vector<double> y, dx, dw;
  Expected(const Sizes& s, DType dtype)
      : start(s, dtype),
        y(reference_y(start.x, start.w, s)),
        dx(reference_dx(start.dy, start.w, s)),
        dw(reference_dweight(start.dy, start.x, s)) {}
};
const std::vector<Expected>& all_expected() {
  static const std::vector<Expected> all = [] {
    std::vector<Expected> made;
    for (DType dtype : kDTypes)
      for (const Sizes& s : kSizes) made.emplace_back(s, dtype);
    return made;
  }();
  return all;
}

template <class F>
void for_each_case(F&& f) {
  for (const Exec& exec : test::all_execs())
    for (const Expected& want : all_expected()) {
      Case c = want.start;
      SCOPED_TRACE(name(c));
      f(exec, c, want);
    }
}

TEST(Linear, ForwardIsXTimesTransposedWeight) {
  for_each_case([](const Exec& exec, Case& c, const Expected& want) {
    run_with_workspace(exec, c.forward());
    EXPECT_TRUE(test::close(c.y, want.y, test::tolerance(c.dtype)));
  });
}

TEST(Linear, ForwardAddsAnAddendThatMayBeY) {
  for_each_case([](const Exec& exec, Case& c, const Expected& want) {
    Array addend = Array::normal(c.dtype, c.y.size(), 4), before = addend;
    LinearForward args = c.forward();
    args.addend = addend.data();
    run_with_workspace(exec, args);
    EXPECT_TRUE(test::close(c.y, sum(want.y, addend), test::tolerance(c.dtype)));
    EXPECT_TRUE(addend.same_bits(before));
    args.y = addend.data();
    run_with_workspace(exec, args);
    EXPECT_TRUE(addend.same_bits(c.y));
  });
}

TEST(Linear, BackwardGivesBothGradients) {
  for_each_case([](const Exec& exec, Case& c, const Expected& want) {
    run_with_workspace(exec, c.backward());
    EXPECT_TRUE(test::close(c.dx, want.dx, test::tolerance(c.dtype)));
    EXPECT_TRUE(test::close(c.dw, want.dw, c.dweight_tolerance()));
  });
}

TEST(Linear, BackwardAccumulatesEachGradientOnItsOwnFlag) {
  for_each_case([](const Exec& exec, Case& c, const Expected& want) {
    for (bool onto_dx : {true, false}) {
      Array dx = Array::normal(c.dtype, c.dx.size(), 5), dw = Array::normal(accum_dtype(c.dtype), c.dw.size(), 6);
      c.dx = dx;
      c.dw = dw;
      LinearBackward args = c.backward();
      args.accumulate_dx = onto_dx;
      args.accumulate_dweight = !onto_dx;
      run_with_workspace(exec, args);
      EXPECT_TRUE(test::close(c.dx, onto_dx ? sum(want.dx, dx) : want.dx, test::tolerance(c.dtype)));
      EXPECT_TRUE(test::close(c.dw, onto_dx ? want.dw : sum(want.dw, dw), c.dweight_tolerance()));
    }
  });
}

TEST(Linear, EitherGradientMayBeLeftOutWithItsOperand) {
  for (const Exec& exec : test::all_execs())
    for (DType dtype : kDTypes) {
      Case both({127, 31, 270}, dtype), only_dx(both.s, dtype), only_dw(both.s, dtype);
      run_with_workspace(exec, both.backward());
      LinearBackward args = only_dx.backward();
      args.dweight = nullptr;
      args.x = nullptr;
      run_with_workspace(exec, args);
      args = only_dw.backward();
      args.dx = nullptr;
      args.weight = nullptr;
      run_with_workspace(exec, args);
      EXPECT_TRUE(only_dx.dx.same_bits(both.dx));
      EXPECT_TRUE(only_dw.dw.same_bits(both.dw));
      EXPECT_TRUE(std::isnan(only_dx.dw[0]) && std::isnan(only_dw.dx[0]));
    }
}

TEST(Linear, NoRowsGiveAZeroWeightGradientOrLeaveIt) {
  for (const Exec& exec : test::all_execs())
    for (DType dtype : kDTypes) {
      Case c({0, 31, 7}, dtype);
      LinearForward forward = c.forward();
      forward.x = forward.y = nullptr;
      run_with_workspace(exec, forward);
      LinearBackward args = c.backward();
      args.x = args.dy = args.dx = nullptr;
      run_with_workspace(exec, args);
      EXPECT_TRUE(test::close(c.dw, std::vector<double>(c.dw.size(), 0.0), 0.0));
      Array kept = c.dw = Array::normal(accum_dtype(dtype), c.dw.size(), 7);
      args = c.backward();
      args.accumulate_dweight = true;
      run_with_workspace(exec, args);
      EXPECT_TRUE(c.dw.same_bits(kept));
    }
}

TEST(Linear, RepeatedCallsGiveTheSameBits) {
  for_each_case([](const Exec& exec, Case& c, const Expected& want) {
    Case again = want.start;
    for (Case* each : {&c, &again}) {
      run_with_workspace(exec, each->forward());
      run_with_workspace(exec, each->backward());
    }
    EXPECT_TRUE(c.y.same_bits(again.y) && c.dx.same_bits(again.dx) && c.dw.same_bits(again.dw));
  });
}

// Summing a long bf16 row in bf16 would stop growing at 256.
TEST(Linear, Bf16SumsInFp32) {
  for (const Exec& exec : test::all_execs()) {
    Array x = Array::filled(DType::kBf16, 1536, 1.0), w = x, y(DType::kBf16, 1);
    run_with_workspace(exec, LinearForward{x.data(), w.data(), y.data(), nullptr, 0, 1, 1536, 1, DType::kBf16});
    EXPECT_EQ(y[0], 1536.0);
  }
}

// 256 + (1 + 1/256) lies above the midpoint of bf16's 256 and 258; the product rounded by itself would be 1 and the sum
// 256.
TEST(Linear, Bf16RoundsOnceWithItsAddend) {
  for (const Exec& exec : test::all_execs()) {
    Array x = Array::filled(DType::kBf16, 2, 1.0), w = x, y = Array::filled(DType::kBf16, 1, 256.0);
    w.set(1, 1.0 / 256);
    LinearForward args{x.data(), w.data(), y.data(), nullptr, 0, 1, 2, 1, DType::kBf16};
    args.addend = y.data();
    run_with_workspace(exec, args);
    EXPECT_EQ(y[0], 258.0);
  }
}

template <class Args>
std::string error_of(Args args) {
  try {
    run(test::cpu_exec(1), args);
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}
template <class Args, class Change>
std::string error_after(Args args, Change&& change) {
  change(args);
  return error_of(args);
}

TEST(Linear, BadArgumentsAreNamed) {
  auto contains = [](const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; };
  Case c({2, 3, 4}, DType::kF32);
  using F = LinearForward;
  using B = LinearBackward;
  for (auto [change, field] : std::vector<std::pair<void (*)(F&), const char*>>{
           {[](F& g) { g.rows = -1; }, "LinearForward.rows"},
           {[](F& g) { g.in = 0; }, "LinearForward.in"},
           {[](F& g) { g.out = int64_t{1} << 31; }, "LinearForward.out"},
           {[](F& g) { g.x = nullptr; }, "LinearForward.x"},
           {[](F& g) { g.weight = nullptr; }, "LinearForward.weight"},
           {[](F& g) { g.y = nullptr; }, "LinearForward.y"},
           {[](F& g) { g.dtype = DType::kBf16; }, "LinearForward.workspace"}})
    EXPECT_PRED2(contains, error_after(c.forward(), change), field);
  for (auto [change, field] : std::vector<std::pair<void (*)(B&), const char*>>{
           {[](B& g) { g.rows = -7; }, "LinearBackward.rows >= 0, got -7"},
           {[](B& g) { g.out = 0; }, "LinearBackward.out"},
           {[](B& g) { g.dy = nullptr; }, "LinearBackward.dy"},
           {[](B& g) { g.x = nullptr; }, "LinearBackward.x"},
           {[](B& g) { g.weight = nullptr; }, "LinearBackward.weight"}})
    EXPECT_PRED2(contains, error_after(c.backward(), change), field);
  LinearForward small = c.forward();
  small.dtype = DType::kBf16;
  small.workspace = &small;
  small.workspace_size_bytes = 8;
  EXPECT_PRED2(contains, error_of(small), "LinearForward.workspace_size_bytes");
}

}  // namespace
}  // namespace xce

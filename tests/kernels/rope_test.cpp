// Rotations against complex multiplication, tables against values of Hugging Face transformers.
#include "kernels/rope.h"

#include <gtest/gtest.h>

#include <cmath>
#include <complex>
#include <vector>

#include "tests/support/array.h"
#include "tests/support/compare.h"
#include "tests/support/execs.h"

namespace xce {
namespace {

using test::Array;

const DType kDTypes[] = {DType::kF32, DType::kBf16, DType::kF64};

struct Shape {
  int64_t rows, seq_len, heads, head_dim, gap;
};
const Shape kShapes[] = {{0, 3, 1, 4, 0},    {1, 1, 1, 2, 0},       {7, 7, 3, 6, 5},    {31, 10, 2, 62, 0},
                         {127, 64, 2, 8, 9}, {300, 100, 4, 32, 64}, {33, 33, 1, 254, 1}};

Array table_of(DType dtype, const Shape& s) {
  std::vector<double> values = rope_table(s.seq_len, s.head_dim, 10000.0, {});
  Array table(accum_dtype(dtype), values.size());
  for (size_t i = 0; i < values.size(); ++i) table.set(i, values[i]);
  return table;
}
Array rotated(const Exec& exec, Array x, const Shape& s, bool inverse) {
  Array table = table_of(x.dtype(), s);
  run(exec, Rope{x.data(), s.heads * s.head_dim + s.gap, table.data(), s.rows, s.seq_len, s.heads, s.head_dim,
                 x.dtype(), inverse});
  return x;
}
// (a + ib) e^(+-i angle), angle = position * 10000^(-2i / head_dim); what lies between rows stays.
std::vector<double> reference(const Array& x, const Shape& s, double sign) {
  std::vector<double> out = x.values();
  for (int64_t r = 0; r < s.rows; ++r)
    for (int64_t h = 0; h < s.heads; ++h)
      for (int64_t i = 0; i < s.head_dim / 2; ++i) {
        int64_t at = r * (s.heads * s.head_dim + s.gap) + h * s.head_dim + i;
        double angle = (r % s.seq_len) / std::pow(10000.0, 2.0 * i / s.head_dim);
        std::complex<double> z(x[at], x[at + s.head_dim / 2]);
        z *= std::polar(1.0, sign * angle);
        out[at] = z.real();
        out[at + s.head_dim / 2] = z.imag();
      }
  return out;
}

TEST(Rope, RotatesPairsInPlaceAndLeavesTheGaps) {
  for (DType dtype : kDTypes)
    for (const Exec& exec : test::all_execs())
      for (const Shape& s : kShapes)
        for (bool inverse : {false, true}) {
          int64_t stride = s.heads * s.head_dim + s.gap;
          Array x = Array::normal(dtype, s.rows * stride, 1);
          Array got = rotated(exec, x, s, inverse);
          EXPECT_TRUE(test::close(got, reference(x, s, inverse ? -1 : 1), test::tolerance(dtype)))
              << name_of(dtype) << " " << s.rows;
          for (int64_t r = 0; r < s.rows; ++r)
            for (int64_t i = stride - s.gap; i < stride; ++i) ASSERT_EQ(got[r * stride + i], x[r * stride + i]);
          EXPECT_TRUE(rotated(exec, x, s, inverse).same_bits(got));
        }
}

TEST(Rope, InverseUndoesTheRotation) {
  for (DType dtype : {DType::kF32, DType::kF64})
    for (const Exec& exec : test::all_execs()) {
      Shape s{127, 50, 3, 32, 0};
      Array x = Array::normal(dtype, s.rows * s.heads * s.head_dim, 2);
      EXPECT_TRUE(test::close(rotated(exec, rotated(exec, x, s, false), s, true), x.values(), test::tolerance(dtype)));
    }
}

TEST(Rope, TableHoldsCosAndSinOfEachPosition) {
  std::vector<double> table = rope_table(5, 4, 100.0, {});
  ASSERT_EQ(table.size(), 20u);
  for (int p = 0; p < 5; ++p) {
    EXPECT_DOUBLE_EQ(table[p * 4 + 0], std::cos(p * 1.0));
    EXPECT_DOUBLE_EQ(table[p * 4 + 1], std::sin(p * 1.0));
    EXPECT_DOUBLE_EQ(table[p * 4 + 2], std::cos(p * 0.1));
    EXPECT_DOUBLE_EQ(table[p * 4 + 3], std::sin(p * 0.1));
  }
}

// Frequencies printed by transformers' _compute_llama3_parameters in fp32; position 1's angle is the frequency.
void expect_frequencies(const std::vector<double>& table, int64_t half, const std::vector<double>& want) {
  ASSERT_EQ(static_cast<int64_t>(want.size()), half);
  for (int64_t i = 0; i < half; ++i) {
    double frequency = std::atan2(table[(half + i) * 2 + 1], table[(half + i) * 2]);
    EXPECT_NEAR(frequency, want[i], 1e-6 * want[i]) << i;
  }
}

TEST(Rope, Llama3ScalingMatchesTransformers) {
  expect_frequencies(rope_table(2, 64, 500000.0, {32.0, 1.0, 4.0, 8192.0}), 32,
                     {1,
                      0.663601279,
                      0.440366626,
                      0.292227834,
                      0.193922758,
                      0.128687382,
                      0.0853971019,
                      0.0566696189,
                      0.0376060307,
                      0.0249554086,
                      0.0165604409,
                      0.0109895291,
                      0.00729266508,
                      0.00483942125,
                      0.00321144611,
                      0.00129054801,
                      0.000429556705,
                      9.70828623e-05,
                      1.94616387e-05,
                      1.29147675e-05,
                      8.57025589e-06,
                      5.68723226e-06,
                      3.77405445e-06,
                      2.50446715e-06,
                      1.66196742e-06,
                      1.10288363e-06,
                      7.31874934e-07,
                      4.85673127e-07,
                      3.22293289e-07,
                      2.1387423e-07,
                      1.41927202e-07,
                      9.41830649e-08});
  expect_frequencies(
      rope_table(2, 16, 10000.0, {4.0, 1.0, 4.0, 256.0}), 8,
      {1, 0.316227764, 0.100000001, 0.0101859178, 0.00249999994, 0.000790569466, 0.000250000012, 7.90569466e-05});
}

TEST(Rope, RejectsBadArguments) {
  Exec exec = test::cpu_exec(1);
  Array x = Array::normal(DType::kF32, 8, 1), table = Array::filled(DType::kF32, 8, 1);
  EXPECT_THROW(run(exec, Rope{x.data(), 7, table.data(), 1, 1, 2, 4, DType::kF32}), Error);
  EXPECT_THROW(run(exec, Rope{x.data(), 8, table.data(), 1, 1, 2, 3, DType::kF32}), Error);
  EXPECT_THROW(run(exec, Rope{x.data(), 8, table.data(), 1, 0, 2, 4, DType::kF32}), Error);
  EXPECT_THROW(run(exec, Rope{x.data(), 8, nullptr, 1, 1, 2, 4, DType::kF32}), Error);
  EXPECT_THROW(rope_table(4, 3, 10000.0, {}), Error);
  EXPECT_THROW(rope_table(4, 4, 10000.0, {8.0, 4.0, 4.0, 8192.0}), Error);
}

}  // namespace
}  // namespace xce

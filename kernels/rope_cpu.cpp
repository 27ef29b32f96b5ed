// Rotates rows in place from a table of (cos, sin); the table's frequencies follow Llama 3's scaling.
#include "kernels/rope.h"

#include <cmath>
#include <numbers>

#include "kernels/cpu/parallel.h"
#include "kernels/cpu/vec.h"

namespace xce {
namespace {

// One head: x is [2 * half], table is (half, 2), sign -1 turns backwards.
template <class T>
void rotate_head(T* x, const Accum<T>* table, int64_t half, Accum<T> sign) {
#pragma omp simd
  for (int64_t i = 0; i < half; ++i) {
    Accum<T> a = cpu::load(x, i), b = cpu::load(x, i + half);
    Accum<T> c = table[2 * i], s = sign * table[2 * i + 1];
    cpu::store(x, i, a * c - b * s);
    cpu::store(x, i + half, b * c + a * s);
  }
}

// Wavelengths longer than the original context is good for are stretched by `factor`, short ones stay, between them a
// blend.
double scaled_frequency(double frequency, const RopeScaling& scaling) {
  if (scaling.factor == 1.0) return frequency;
  double turns = scaling.original_max_position * frequency / (2 * std::numbers::pi);
  if (turns < scaling.low_freq_factor) return frequency / scaling.factor;
  if (turns > scaling.high_freq_factor) return frequency;
  double keep = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor);
  return (1 - keep) * frequency / scaling.factor + keep * frequency;
}

}  // namespace

void check_args(const Rope& args) {
  XCE_CHECK(args.rows >= 0, "Rope.rows >= 0", args.rows);
  XCE_CHECK(args.seq_len >= 1, "Rope.seq_len >= 1", args.seq_len);
  XCE_CHECK(args.heads >= 1, "Rope.heads >= 1", args.heads);
  XCE_CHECK(args.head_dim >= 2 && args.head_dim % 2 == 0, "Rope.head_dim even and >= 2", args.head_dim);
  XCE_CHECK(args.row_stride >= args.heads * args.head_dim,
            str("Rope.row_stride >= heads * head_dim = ", args.heads * args.head_dim), args.row_stride);
  XCE_CHECK(args.rows == 0 || (args.x && args.table), "Rope.x and .table not null", "null");
}

void launch(const CpuExec& exec, const Rope& args) {
  check_args(args);
  visit_dtype(args.dtype, [&]<class T>(std::type_identity<T>) {
    using A = Accum<T>;
    T* x = static_cast<T*>(args.x);
    const A* table = static_cast<const A*>(args.table);
    const A sign = args.inverse ? A(-1) : A(1);
    parallel_for(exec, args.rows, cpu::row_grain(args.heads * args.head_dim), [&](int64_t begin, int64_t end, int) {
      for (int64_t r = begin; r < end; ++r)
        for (int64_t h = 0; h < args.heads; ++h)
          rotate_head<T>(x + r * args.row_stride + h * args.head_dim, table + (r % args.seq_len) * args.head_dim,
                         args.head_dim / 2, sign);
    });
  });
}

std::vector<double> rope_table(int64_t seq_len, int64_t head_dim, double theta, const RopeScaling& scaling) {
  XCE_CHECK(seq_len >= 1, "rope_table seq_len >= 1", seq_len);
  XCE_CHECK(head_dim >= 2 && head_dim % 2 == 0, "rope_table head_dim even and >= 2", head_dim);
  XCE_CHECK(theta > 0, "rope_table theta > 0", theta);
  XCE_CHECK(scaling.factor > 0, "RopeScaling.factor > 0", scaling.factor);
  XCE_CHECK(scaling.factor == 1.0 || scaling.high_freq_factor > scaling.low_freq_factor,
            str("RopeScaling.high_freq_factor > low_freq_factor = ", scaling.low_freq_factor),
            scaling.high_freq_factor);
  const int64_t half = head_dim / 2;
  std::vector<double> table(seq_len * head_dim);
  for (int64_t i = 0; i < half; ++i) {
    double frequency = scaled_frequency(std::pow(theta, -static_cast<double>(2 * i) / head_dim), scaling);
    for (int64_t p = 0; p < seq_len; ++p) {
      table[(p * half + i) * 2] = std::cos(p * frequency);
      table[(p * half + i) * 2 + 1] = std::sin(p * frequency);
    }
  }
  return table;
}

}  // namespace xce

// Flat loops in contiguous parts; conversions round once, straight from the source value.
#include "kernels/elementwise.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "kernels/cpu/parallel.h"
#include "kernels/cpu/vec.h"

namespace xce {
namespace {

template <class T>
void add(const T* a, const T* b, T* y, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) cpu::store(y, i, cpu::load(a, i) + cpu::load(b, i));
}

template <class To, class From>
To rounded(From x) {
  return static_cast<To>(static_cast<Accum<To>>(x));
}
// Rounding to float first would turn a value just beside a Bf16 tie into the tie; such a float is moved back to its
// side.
template <>
Bf16 rounded<Bf16, double>(double x) {
  float y = static_cast<float>(x);
  uint32_t bits = std::bit_cast<uint32_t>(y);
  bool made_tie = (bits & 0xffffu) == 0x8000u && static_cast<double>(y) != x;
  uint32_t aside = std::abs(x) > std::abs(static_cast<double>(y)) ? bits + 1 : bits - 1;
  return Bf16(std::bit_cast<float>(made_tie ? aside : bits));
}

template <class From, class To>
void convert(const From* x, To* y, int64_t n) {
  if constexpr (std::is_same_v<From, To>) {
    std::memmove(y, x, n * sizeof(From));
  } else {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) y[i] = rounded<To>(cpu::load(x, i));
  }
}

}  // namespace

void check_args(const Add& args) {
  XCE_CHECK(args.n >= 0, "Add.n >= 0", args.n);
  XCE_CHECK(args.n == 0 || (args.a && args.b && args.y), "Add.a, .b and .y not null", "null");
}

void check_args(const Convert& args) {
  XCE_CHECK(args.n >= 0, "Convert.n >= 0", args.n);
  XCE_CHECK(args.n == 0 || (args.x && args.y), "Convert.x and .y not null", "null");
  XCE_CHECK(args.x != args.y || args.n == 0 || size_of(args.from) == size_of(args.to),
            "Convert.x other than .y when the sizes differ", name_of(args.to));
}

void check_args(const Fill& args) {
  XCE_CHECK(args.n >= 0, "Fill.n >= 0", args.n);
  XCE_CHECK(args.n == 0 || args.y, "Fill.y not null", "null");
}

void launch(const CpuExec& exec, const Add& args) {
  check_args(args);
  visit_dtype(args.dtype, [&]<class T>(std::type_identity<T>) {
    parallel_for(exec, args.n, cpu::kGrain, [&](int64_t begin, int64_t end, int) {
      add(static_cast<const T*>(args.a) + begin, static_cast<const T*>(args.b) + begin, static_cast<T*>(args.y) + begin,
          end - begin);
    });
  });
}

void launch(const CpuExec& exec, const Convert& args) {
  check_args(args);
  visit_dtype(args.from, [&]<class From>(std::type_identity<From>) {
    visit_dtype(args.to, [&]<class To>(std::type_identity<To>) {
      parallel_for(exec, args.n, cpu::kGrain, [&](int64_t begin, int64_t end, int) {
        convert(static_cast<const From*>(args.x) + begin, static_cast<To*>(args.y) + begin, end - begin);
      });
    });
  });
}

void launch(const CpuExec& exec, const Fill& args) {
  check_args(args);
  visit_dtype(args.dtype, [&]<class T>(std::type_identity<T>) {
    const T value = rounded<T>(args.value);
    parallel_for(exec, args.n, cpu::kGrain, [&](int64_t begin, int64_t end, int) {
      std::fill(static_cast<T*>(args.y) + begin, static_cast<T*>(args.y) + end, value);
    });
  });
}

}  // namespace xce

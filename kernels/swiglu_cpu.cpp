// With s = sigmoid(gate): y = gate * s * up; dgate = dy * up * s * (1 + gate * (1 - s)), dup = dy * gate * s. The
// forward multiplies by s, too, instead of dividing once: so the backward makes the same y without a second division.
#include "kernels/swiglu.h"

#include "kernels/cpu/parallel.h"
#include "kernels/cpu/vec.h"

namespace xce {
namespace {

template <class T>
void forward_row(const T* gate_up, T* y, int64_t cols) {
  using A = Accum<T>;
#pragma omp simd
  for (int64_t i = 0; i < cols; ++i) {
    A gate = cpu::load(gate_up, i), up = cpu::load(gate_up, i + cols);
    cpu::store(y, i, gate * cpu::sigmoid(gate) * up);
  }
}

template <class T, bool kY>
void backward_row(const T* gate_up, const T* dy, T* dgate_up, T* y, int64_t cols) {
  using A = Accum<T>;
#pragma omp simd
  for (int64_t i = 0; i < cols; ++i) {
    A gate = cpu::load(gate_up, i), up = cpu::load(gate_up, i + cols), d = cpu::load(dy, i);
    A s = cpu::sigmoid(gate), silu = gate * s;
    cpu::store(dgate_up, i, d * up * s * (A(1) + gate * (A(1) - s)));
    cpu::store(dgate_up, i + cols, d * silu);
    if constexpr (kY) cpu::store(y, i, silu * up);
  }
}

}  // namespace

void check_args(const SwigluForward& args) {
  XCE_CHECK(args.rows >= 0, "SwigluForward.rows >= 0", args.rows);
  XCE_CHECK(args.cols >= 1, "SwigluForward.cols >= 1", args.cols);
  XCE_CHECK(args.rows == 0 || (args.gate_up && args.y), "SwigluForward.gate_up and .y not null", "null");
}

void check_args(const SwigluBackward& args) {
  XCE_CHECK(args.rows >= 0, "SwigluBackward.rows >= 0", args.rows);
  XCE_CHECK(args.cols >= 1, "SwigluBackward.cols >= 1", args.cols);
  XCE_CHECK(args.rows == 0 || (args.gate_up && args.dy && args.dgate_up),
            "SwigluBackward.gate_up, .dy and .dgate_up not null", "null");
}

void launch(const CpuExec& exec, const SwigluForward& args) {
  check_args(args);
  visit_dtype(args.dtype, [&]<class T>(std::type_identity<T>) {
    parallel_for(exec, args.rows, cpu::row_grain(args.cols), [&](int64_t begin, int64_t end, int) {
      for (int64_t r = begin; r < end; ++r)
        forward_row(static_cast<const T*>(args.gate_up) + 2 * r * args.cols, static_cast<T*>(args.y) + r * args.cols,
                    args.cols);
    });
  });
}

void launch(const CpuExec& exec, const SwigluBackward& args) {
  check_args(args);
  visit_dtype(args.dtype, [&]<class T>(std::type_identity<T>) {
    auto* row = args.y ? backward_row<T, true> : backward_row<T, false>;
    parallel_for(exec, args.rows, cpu::row_grain(args.cols), [&](int64_t begin, int64_t end, int) {
      for (int64_t r = begin; r < end; ++r)
        row(static_cast<const T*>(args.gate_up) + 2 * r * args.cols, static_cast<const T*>(args.dy) + r * args.cols,
            static_cast<T*>(args.dgate_up) + 2 * r * args.cols,
            args.y ? static_cast<T*>(args.y) + r * args.cols : nullptr, args.cols);
    });
  });
}

}  // namespace xce

// Grid-stride loops over 16-byte vectors of the narrower type; conversions round once, straight from the source value.
#include "kernels/base/cuda_check.h"
#include "kernels/cuda/fill.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/vec.cuh"
#include "kernels/elementwise.h"

namespace xce {
namespace {

template <class T, int N>
__global__ void add(const T* a, const T* b, T* y, int64_t n) {
  cuda::for_each_vector<N>(n, [&]<int W>(std::integral_constant<int, W>, int64_t i) {
    auto va = cuda::load<W>(a + i), vb = cuda::load<W>(b + i);
#pragma unroll
    for (int j = 0; j < W; ++j) va.at[j] = cuda::narrow<T>(cuda::widen(va.at[j]) + cuda::widen(vb.at[j]));
    cuda::store<W>(y + i, va);
  });
}

template <class From, class To, int N>
__global__ void convert(const From* x, To* y, int64_t n) {
  cuda::for_each_vector<N>(n, [&]<int W>(std::integral_constant<int, W>, int64_t i) {
    auto from = cuda::load<W>(x + i);
    cuda::Vec<To, W> to;
#pragma unroll
    for (int j = 0; j < W; ++j) to.at[j] = cuda::rounded<To>(from.at[j]);
    cuda::store<W>(y + i, to);
  });
}

}  // namespace

void launch(const CudaExec& exec, const Add& args) {
  check_args(args);
  if (args.n == 0) return;
  visit_dtype(args.dtype, [&]<class T>(std::type_identity<T>) {
    cuda::with_width<T>(cuda::aligned16(args.a, args.b, args.y), [&]<int N>(std::integral_constant<int, N>) {
      add<T, N><<<cuda::grid_for(exec, cuda::ceil_div(args.n, N)), cuda::kThreads, 0, exec.stream>>>(
          static_cast<const T*>(args.a), static_cast<const T*>(args.b), static_cast<T*>(args.y), args.n);
    });
  });
  cuda::check_launch("Add");
}

void launch(const CudaExec& exec, const Convert& args) {
  check_args(args);
  if (args.n == 0 || args.x == args.y) return;
  visit_dtype(args.from, [&]<class From>(std::type_identity<From>) {
    visit_dtype(args.to, [&]<class To>(std::type_identity<To>) {
      using Narrower = std::conditional_t<(sizeof(From) < sizeof(To)), From, To>;
      cuda::with_width<Narrower>(cuda::aligned16(args.x, args.y), [&]<int N>(std::integral_constant<int, N>) {
        convert<From, To, N><<<cuda::grid_for(exec, cuda::ceil_div(args.n, N)), cuda::kThreads, 0, exec.stream>>>(
            static_cast<const From*>(args.x), static_cast<To*>(args.y), args.n);
      });
    });
  });
  cuda::check_launch("Convert");
}

void launch(const CudaExec& exec, const Fill& args) {
  check_args(args);
  visit_dtype(args.dtype,
              [&]<class T>(std::type_identity<T>) { cuda::fill(exec, static_cast<T*>(args.y), args.n, args.value); });
}

}  // namespace xce

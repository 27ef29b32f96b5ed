// cuBLASLt's products; its scratch belongs to the CudaDevice, so the args' workspace is not needed.
#include "kernels/cuda/fill.cuh"
#include "kernels/cuda/gemm.cuh"
#include "kernels/linear.h"

namespace xce {

size_t workspace_bytes(const CudaExec&, const LinearForward&) {
  return 0;
}
size_t workspace_bytes(const CudaExec&, const LinearBackward&) {
  return 0;
}

void launch(const CudaExec& exec, const LinearForward& args) {
  check_args(args, 0);
  if (args.rows == 0) return;
  cuda::gemm(exec, {.a = args.x,
                    .b = args.weight,
                    .c = args.y,
                    .lda = args.in,
                    .ldb = args.in,
                    .ldc = args.out,
                    .m = args.rows,
                    .n = args.out,
                    .k = args.in,
                    .trans_a = false,
                    .trans_b = true,
                    .in = args.dtype,
                    .out = args.dtype,
                    .addend = args.addend});
}

void launch(const CudaExec& exec, const LinearBackward& args) {
  check_args(args, 0);
  if (args.rows == 0) {  // no products: dweight is an empty sum
    if (args.dweight && !args.accumulate_dweight)
      visit_dtype(args.dtype, [&]<class T>(std::type_identity<T>) {
        cuda::fill(exec, static_cast<Accum<T>*>(args.dweight), args.out * args.in, 0);
      });
    return;
  }
  if (args.dx)
    cuda::gemm(exec, {.a = args.dy,
                      .b = args.weight,
                      .c = args.dx,
                      .lda = args.out,
                      .ldb = args.in,
                      .ldc = args.in,
                      .m = args.rows,
                      .n = args.in,
                      .k = args.out,
                      .trans_a = false,
                      .trans_b = false,
                      .in = args.dtype,
                      .out = args.dtype,
                      .addend = args.accumulate_dx ? args.dx : nullptr});
  if (args.dweight)
    cuda::gemm(exec, {.a = args.dy,
                      .b = args.x,
                      .c = args.dweight,
                      .lda = args.out,
                      .ldb = args.in,
                      .ldc = args.in,
                      .m = args.out,
                      .n = args.in,
                      .k = args.rows,
                      .trans_a = true,
                      .trans_b = false,
                      .in = args.dtype,
                      .out = accum_dtype(args.dtype),
                      .addend = args.accumulate_dweight ? args.dweight : nullptr});
}

}  // namespace xce

#include "kernels/rmsnorm.h"
#include "src/ops/ops.h"

namespace xce {

Var rms_norm(const Var& x, const Var& weight, double eps) {
  Tape& tape = x.tape();
  Var y = tape.make(x.shape());
  Var rstd = tape.make({x.rows(), 1}, accum_dtype(x.dtype()));
  tape.run(RmsNormForward{.x = x.data(),
                          .weight = weight.data(),
                          .y = y.data(),
                          .rstd = rstd.data(),
                          .rows = x.rows(),
                          .cols = x.cols(),
                          .dtype = x.dtype(),
                          .eps = eps});
  tape.on_backward(y, [&tape, x, weight, rstd](const Grad& dy) {
    GradOut dx = tape.grad_out(x), dweight = tape.grad_out(weight);
    tape.run_with_workspace(RmsNormBackward{.x = x.data(),
                                            .weight = weight.data(),
                                            .rstd = rstd.data(),
                                            .dy = Tape::data(dy),
                                            .dx = dx.data,
                                            .dweight = dweight.data,
                                            .workspace = nullptr,
                                            .workspace_size_bytes = 0,
                                            .rows = x.rows(),
                                            .cols = x.cols(),
                                            .dtype = x.dtype(),
                                            .accumulate_dx = dx.accumulate,
                                            .accumulate_dweight = dweight.accumulate});
  });
  return y;
}

}  // namespace xce

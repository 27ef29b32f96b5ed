#include "kernels/linear.h"

#include "src/ops/ops.h"

namespace xce {

Var linear(const Var& x, const Var& weight) {
  Tape& tape = x.tape();
  Var y = tape.make({x.rows(), weight.rows()});
  tape.run_with_workspace(LinearForward{.x = x.data(),
                                        .weight = weight.data(),
                                        .y = y.data(),
                                        .workspace = nullptr,
                                        .workspace_size_bytes = 0,
                                        .rows = x.rows(),
                                        .in = x.cols(),
                                        .out = weight.rows(),
                                        .dtype = x.dtype()});
  tape.on_backward(y, [&tape, x, weight](const Grad& dy) {
    GradOut dx = tape.grad_out(x), dweight = tape.grad_out(weight);
    tape.run_with_workspace(LinearBackward{.x = x.data(),
                                           .weight = weight.data(),
                                           .dy = Tape::data(dy),
                                           .dx = dx.data,
                                           .dweight = dweight.data,
                                           .workspace = nullptr,
                                           .workspace_size_bytes = 0,
                                           .rows = x.rows(),
                                           .in = x.cols(),
                                           .out = weight.rows(),
                                           .dtype = x.dtype(),
                                           .accumulate_dx = dx.accumulate,
                                           .accumulate_dweight = dweight.accumulate});
  });
  return y;
}

}  // namespace xce

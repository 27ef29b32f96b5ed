#include "kernels/linear.h"

#include "src/ops/ops.h"

namespace xce {
namespace {

Var product(const Var* residual, const Var& x, const Var& weight) {
  Tape& tape = x.tape();
  Var y = tape.make({x.rows(), weight.rows()});
  XCE_CHECK(!residual || residual->shape() == y.shape(), str("a residual of ", y.rows(), " x ", y.cols()),
            str(residual->rows(), " x ", residual->cols()));
  tape.run_with_workspace(LinearForward{.x = x.data(),
                                        .weight = weight.data(),
                                        .y = y.data(),
                                        .workspace = nullptr,
                                        .workspace_size_bytes = 0,
                                        .rows = x.rows(),
                                        .in = x.cols(),
                                        .out = weight.rows(),
                                        .dtype = x.dtype(),
                                        .addend = residual ? residual->data() : nullptr});
  return y;
}

void product_backward(Tape& tape, const Var& x, const Var& weight, const Grad& dy) {
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
}

}  // namespace

Var linear(const Var& x, const Var& weight) {
  Tape& tape = x.tape();
  Var y = product(nullptr, x, weight);
  tape.on_backward(y, [&tape, x, weight](const Grad& dy) { product_backward(tape, x, weight, dy); });
  return y;
}

Var linear_add(const Var& residual, const Var& x, const Var& weight) {
  Tape& tape = x.tape();
  Var y = product(&residual, x, weight);
  tape.on_backward(y, [&tape, x, weight, residual = tape.gradient_only(residual)](const Grad& dy) {
    product_backward(tape, x, weight, dy);
    tape.pass_grad(dy, residual);
  });
  return y;
}

}  // namespace xce

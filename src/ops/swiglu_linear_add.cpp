// The backward takes the feed-forward's widest arrays one after another: the product's gradient d, which one kernel
// turns into gate_up's gradient and, in d's place, the activation that weight's gradient needs.
#include "kernels/linear.h"
#include "kernels/swiglu.h"
#include "src/ops/ops.h"

namespace xce {
namespace {

void backward(Tape& tape, const Var& gate_up, const Var& weight, const Grad& dy) {
  const int64_t rows = gate_up.rows(), cols = weight.cols();
  StorageRef act = tape.scratch(static_cast<size_t>(rows * cols) * size_of(gate_up.dtype()));
  LinearBackward product{.x = nullptr,
                         .weight = weight.data(),
                         .dy = Tape::data(dy),
                         .dx = act->data(),
                         .dweight = nullptr,
                         .workspace = nullptr,
                         .workspace_size_bytes = 0,
                         .rows = rows,
                         .in = cols,
                         .out = weight.rows(),
                         .dtype = gate_up.dtype()};
  tape.run_with_workspace(product);
  GradOut dgate_up = tape.grad_over(gate_up);
  XCE_CHECK(!dgate_up.accumulate, "swiglu_linear_add as the only user of its gate_up", "another gradient");
  tape.run(SwigluBackward{.gate_up = gate_up.data(),
                          .dy = act->data(),
                          .dgate_up = dgate_up.data,
                          .rows = rows,
                          .cols = cols,
                          .dtype = gate_up.dtype(),
                          .y = act->data()});
  GradOut dweight = tape.grad_out(weight);
  product.x = act->data();
  product.dx = nullptr;
  product.dweight = dweight.data;
  product.accumulate_dweight = dweight.accumulate;
  tape.run_with_workspace(product);
}

}  // namespace

Var swiglu_linear_add(const Var& residual, const Var& gate_up, const Var& weight) {
  Tape& tape = gate_up.tape();
  const int64_t rows = gate_up.rows(), cols = weight.cols();
  XCE_CHECK(gate_up.cols() == 2 * cols, str("a gate_up of ", 2 * cols, " columns"), gate_up.cols());
  Var y = tape.make({rows, weight.rows()});
  XCE_CHECK(residual.shape() == y.shape(), str("a residual of ", y.rows(), " x ", y.cols()),
            str(residual.rows(), " x ", residual.cols()));
  {
    StorageRef act = tape.scratch(static_cast<size_t>(rows * cols) * size_of(y.dtype()));
    tape.run(
        SwigluForward{.gate_up = gate_up.data(), .y = act->data(), .rows = rows, .cols = cols, .dtype = y.dtype()});
    tape.run_with_workspace(LinearForward{.x = act->data(),
                                          .weight = weight.data(),
                                          .y = y.data(),
                                          .workspace = nullptr,
                                          .workspace_size_bytes = 0,
                                          .rows = rows,
                                          .in = cols,
                                          .out = weight.rows(),
                                          .dtype = y.dtype(),
                                          .addend = residual.data()});
  }
  tape.on_backward(y, [&tape, gate_up, weight, residual = tape.gradient_only(residual)](const Grad& dy) {
    backward(tape, gate_up, weight, dy);
    tape.pass_grad(dy, residual);
  });
  return y;
}

}  // namespace xce

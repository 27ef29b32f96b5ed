#include "kernels/swiglu.h"

#include "src/ops/ops.h"

namespace xce {

Var swiglu(const Var& x) {
  Tape& tape = x.tape();
  Var y = tape.make({x.rows(), x.cols() / 2});
  tape.run(SwigluForward{.gate_up = x.data(), .y = y.data(), .rows = y.rows(), .cols = y.cols(), .dtype = x.dtype()});
  tape.on_backward(y, [&tape, x](const Grad& dy) {
    GradOut dx = tape.grad_out(x);
    XCE_CHECK(!dx.accumulate, "swiglu as the only user of its input", "another gradient");
    tape.run(SwigluBackward{.gate_up = x.data(),
                            .dy = Tape::data(dy),
                            .dgate_up = dx.data,
                            .rows = dy->shape.rows,
                            .cols = dy->shape.cols,
                            .dtype = x.dtype()});
  });
  return y;
}

}  // namespace xce

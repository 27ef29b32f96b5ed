#include "kernels/elementwise.h"
#include "src/ops/ops.h"

namespace xce {

Var add(const Var& a, const Var& b) {
  Tape& tape = a.tape();
  XCE_CHECK(a.shape() == b.shape(), "two values of one shape",
            str(a.rows(), " x ", a.cols(), " and ", b.rows(), " x ", b.cols()));
  Var y = tape.make(a.shape());
  tape.run(Add{.a = a.data(), .b = b.data(), .y = y.data(), .n = a.shape().size(), .dtype = a.dtype()});
  tape.on_backward(y, [&tape, a = tape.gradient_only(a), b = tape.gradient_only(b)](const Grad& dy) {
    tape.pass_grad(dy, a);
    tape.pass_grad(dy, b);
  });
  return y;
}

}  // namespace xce

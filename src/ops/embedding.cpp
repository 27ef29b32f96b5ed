#include "kernels/embedding.h"

#include "src/ops/ops.h"

namespace xce {

Var embedding(const Var& weight, Tokens tokens) {
  Tape& tape = weight.tape();
  Var y = tape.make({tokens.rows, weight.cols()});
  tape.run(EmbeddingForward{.weight = weight.data(),
                            .tokens = tokens.ids,
                            .y = y.data(),
                            .rows = tokens.rows,
                            .vocab = weight.rows(),
                            .hidden = weight.cols(),
                            .dtype = y.dtype()});
  tape.on_backward(y, [&tape, weight, tokens](const Grad& dy) {
    GradOut dweight = tape.grad_out(weight);
    tape.run(EmbeddingBackward{.dy = Tape::data(dy),
                               .tokens = tokens.ids,
                               .dweight = dweight.data,
                               .rows = tokens.rows,
                               .vocab = weight.rows(),
                               .hidden = weight.cols(),
                               .dtype = dy->dtype,
                               .accumulate = dweight.accumulate});
  });
  return y;
}

}  // namespace xce

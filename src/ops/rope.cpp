#include "kernels/rope.h"

#include "src/ops/ops.h"

namespace xce {
namespace {

void rotate(Tape& tape, void* x, const Shape& shape, int64_t heads, const RopeTable& table, bool inverse) {
  tape.run(Rope{.x = x,
                .row_stride = shape.cols,
                .table = table.table->data(),
                .rows = shape.rows,
                .seq_len = table.seq_len,
                .heads = heads,
                .head_dim = table.head_dim,
                .dtype = tape.dtype(),
                .inverse = inverse});
}

}  // namespace

Var rope(const Var& x, int64_t heads, RopeTable table) {
  Tape& tape = x.tape();
  Var y = tape.alias(x);
  rotate(tape, y.data(), y.shape(), heads, table, false);
  // x shares y's storage, so capturing it would keep the values alive: only its gradient is wanted.
  tape.on_backward(y, [&tape, heads, table, grad_of_x = tape.gradient_only(x)](const Grad& dy) {
    rotate(tape, tape.own_grad(dy), dy->shape, heads, table, true);
    tape.pass_grad(dy, grad_of_x);
  });
  return y;
}

}  // namespace xce

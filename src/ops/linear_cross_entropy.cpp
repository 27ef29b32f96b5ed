#include "kernels/linear_cross_entropy/linear_cross_entropy.h"

#include "src/ops/ops.h"

namespace xce {
namespace {

LinearCrossEntropyInputs inputs(const Var& h, const Var& weight, const LossIo& io) {
  LinearCrossEntropyInputs in{};
  in.x = h.data();
  in.weight = weight.data();
  in.targets.index = io.targets.ids;
  in.rows = h.rows();
  in.hidden = h.cols();
  in.vocab = weight.rows();
  in.dtype = h.dtype();
  return in;
}

template <class Args>
void run_loss(Tape& tape, Args& args, const Var& h, const Var& weight, const LossIo& io) {
  args.in = inputs(h, weight, io);
  args.options = {.reduction = Reduction::kMean,
                  .z_loss = io.terms.z_loss,
                  .label_smoothing = io.terms.label_smoothing,
                  .denominator = io.denominator};
  args.out.loss_total = io.loss;
  args.workspace.budget_bytes = static_cast<size_t>(io.workspace_bytes);
  args.workspace.size_bytes = tape.workspace_bytes_of(args);
  StorageRef workspace = tape.scratch(args.workspace.size_bytes);
  args.workspace.data = workspace->data();
  tape.run(args);
}

}  // namespace

void linear_cross_entropy(const Var& h, const Var& weight, const LossIo& io) {
  Tape& tape = h.tape();
  if (!tape.recording()) {
    LinearCrossEntropyForward args{};
    return run_loss(tape, args, h, weight, io);
  }
  tape.on_backward([&tape, h, weight, io] {
    GradOut dx = tape.grad_out(h), dweight = tape.grad_out(weight);
    LinearCrossEntropyForwardBackward args{};
    args.grad.dx = dx.data;
    args.grad.accumulate_dx = dx.accumulate;
    args.grad.dweight = dweight.data;
    args.grad.accumulate_dweight = dweight.accumulate;
    run_loss(tape, args, h, weight, io);
  });
}

}  // namespace xce

// Cross-entropy over given logits on a GPU: one block to a row, then one block that sums the rows' losses.
#include "kernels/cross_entropy/cross_entropy.h"

#include <algorithm>

#include "kernels/base/workspace.h"
#include "kernels/cross_entropy/cross_entropy_check.h"
#include "kernels/cross_entropy/row_launch_cuda.cuh"

namespace xce {
namespace {

using loss::RowSums;
using loss::Statistics;
using loss::StatisticsView;

struct Scratch {
  loss::Totals* totals;
  double *row_loss, *row_z_loss;
  size_t bytes;
  Scratch(void* base, int64_t rows) {
    Carver carver(base);
    totals = carver.take<loss::Totals>(1);
    row_loss = carver.take<double>(rows);
    row_z_loss = carver.take<double>(rows);
    bytes = carver.used_bytes();
  }
};

int64_t vocab_global(const CrossEntropyInputs& in) {
  return in.vocab_global < 0 ? in.shard_offset + in.vocab : in.vocab_global;
}

template <class Args>
void check(const CudaExec& exec, const Args& args, const LossOutputs& out) {
  loss::check(args.in, args.options, out);
  const size_t bytes = workspace_bytes(exec, args);
  XCE_CHECK(args.workspace && args.workspace_size_bytes >= bytes, str("a workspace of ", bytes, " bytes"),
            args.workspace_size_bytes);
}

template <class Args>
loss::DeviceCall call_of(const Args& args, const Scratch& scratch) {
  return {.targets = args.in.targets,
          .options = args.options,
          .upstream = {},
          .out = {},
          .dtype = args.in.dtype,
          .rows = args.in.rows,
          .vocab_global = vocab_global(args.in),
          .totals = scratch.totals};
}
template <class T, class Args>
loss::DeviceRows<T, T> rows_of(const Args& args, const Scratch& scratch) {
  const CrossEntropyInputs& in = args.in;
  loss::DeviceRows<T, T> r{};
  r.logits = static_cast<const T*>(in.logits);
  r.ld = in.ld ? in.ld : in.vocab;
  r.ld_out = r.ld;
  r.rows = in.rows;
  r.vocab_global = vocab_global(in);
  r.cols = std::clamp<int64_t>(r.vocab_global - in.shard_offset, 0, in.vocab);
  r.cols_out = in.vocab;
  r.first_col = in.shard_offset;
  r.targets = in.targets;
  if (r.targets.ld_probabilities == 0) r.targets.ld_probabilities = in.vocab;
  r.options = args.options;
  r.extras = loss::extras_of(in.targets, args.options, {});
  r.totals = scratch.totals;
  r.row_loss = scratch.row_loss;
  r.row_z_loss = scratch.row_z_loss;
  return r;
}
template <class T, class Args>
void set_outputs(loss::DeviceRows<T, T>& r, const Args& args) {
  r.out = args.out;
  r.extras = loss::extras_of(args.in.targets, args.options, args.out);
}
template <class T, class Args>
void set_gradient(loss::DeviceRows<T, T>& r, const Args& args) {
  r.dlogits = static_cast<T*>(args.dlogits);
  r.ld_out = args.ld_dlogits ? args.ld_dlogits : args.in.vocab;
  r.upstream = args.upstream;
}
RowSums sums_of(const Scratch& scratch, int64_t rows) {
  return {.loss = scratch.row_loss, .z_loss = scratch.row_z_loss, .rows = rows};
}
// Whether a row needs what only all rows together tell before its gradient, or its loss, is known.
template <class Args>
bool gradient_needs_counts(const Args& args) {
  const LossOptions& options = args.options;
  return (options.reduction == Reduction::kMean && !options.denominator) || options.label_smoothing != 0;
}

template <class T>
void forward(const CudaExec& exec, const CrossEntropyForward& args) {
  const int64_t rows = args.in.rows;
  const Scratch scratch(args.workspace, rows);
  auto r = rows_of<T>(args, scratch);
  set_outputs(r, args);
  if (args.statistics) r.extras.entropy = r.extras.argmax = true;
  loss::DeviceCall call = call_of(args, scratch);
  call.out = args.out;
  const bool losses = loss::any(args.out);
  // Counted with the sums, unless the rows need the sum of the class weights or add to the counts themselves.
  const bool first = losses && (args.options.label_smoothing != 0 || args.out.n_correct);
  if (first) loss::launch_counts(exec, call);
  loss::launch_statistics(exec, r, StatisticsView{args.statistics, rows, 0},
                          losses ? Statistics::kWhole : Statistics::kFirst);
  RowSums sums = sums_of(scratch, rows);
  sums.count = !first;
  if (losses) loss::launch_sums(exec, call, sums);
}

template <class T>
void backward(const CudaExec& exec, const CrossEntropyBackward& args) {
  using A = Accum<T>;
  const Scratch scratch(args.workspace, args.in.rows);
  auto r = rows_of<T>(args, scratch);
  set_gradient(r, args);
  r.offset = const_cast<A*>(static_cast<const A*>(args.offset));  // gradients only read them
  r.logsum = const_cast<A*>(static_cast<const A*>(args.logsum));
  if (gradient_needs_counts(args)) loss::launch_counts(exec, call_of(args, scratch));
  loss::launch_gradients(exec, r);
}

template <class T>
void forward_backward(const CudaExec& exec, const CrossEntropyForwardBackward& args) {
  const Scratch scratch(args.workspace, args.in.rows);
  auto r = rows_of<T>(args, scratch);
  set_outputs(r, args);
  set_gradient(r, args);
  loss::DeviceCall call = call_of(args, scratch);
  call.out = args.out;
  const bool first = gradient_needs_counts(args) || args.out.n_correct;
  if (first) loss::launch_counts(exec, call);
  loss::launch_losses_and_gradients(exec, r);
  RowSums sums = sums_of(scratch, r.rows);
  sums.count = !first;
  if (loss::any(args.out)) loss::launch_sums(exec, call, sums);
}

}  // namespace

size_t workspace_bytes(const CudaExec&, const CrossEntropyForward& args) {
  return Scratch(nullptr, args.in.rows).bytes;
}
size_t workspace_bytes(const CudaExec&, const CrossEntropyBackward& args) {
  return Scratch(nullptr, args.in.rows).bytes;
}
size_t workspace_bytes(const CudaExec&, const CrossEntropyForwardBackward& args) {
  return Scratch(nullptr, args.in.rows).bytes;
}

void launch(const CudaExec& exec, const CrossEntropyForward& args) {
  check(exec, args, args.out);
  if (loss::any(args.out)) loss::check_whole_vocab(args.in);
  visit_loss_dtype(args.in.dtype, [&]<class T>(std::type_identity<T>) { forward<T>(exec, args); });
}

void launch(const CudaExec& exec, const CrossEntropyBackward& args) {
  check(exec, args, {});
  loss::check_backward(args.in.targets, loss::is_whole_vocab(args.in), args.offset, args.logsum, args.in.rows);
  loss::dlogits_ld(args.in, args.dlogits, args.ld_dlogits);
  visit_loss_dtype(args.in.dtype, [&]<class T>(std::type_identity<T>) { backward<T>(exec, args); });
}

void launch(const CudaExec& exec, const CrossEntropyForwardBackward& args) {
  check(exec, args, args.out);
  loss::check_whole_vocab(args.in);
  loss::dlogits_ld(args.in, args.dlogits, args.ld_dlogits);
  visit_loss_dtype(args.in.dtype, [&]<class T>(std::type_identity<T>) { forward_backward<T>(exec, args); });
}

}  // namespace xce

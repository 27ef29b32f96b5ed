// Cross-entropy over given logits on a GPU: one block to a row, then one block that sums the rows' losses.
#include "kernels/cross_entropy/cross_entropy.h"

#include <algorithm>

#include "kernels/base/workspace.h"
#include "kernels/cross_entropy/rows_cuda.cuh"

namespace xce {
namespace {

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

template <class Args>
void check(const CudaExec& exec, const Args& args) {
  const CrossEntropyInputs& in = args.in;
  loss::check(args.options);
  XCE_CHECK(in.rows >= 0, "cross-entropy rows >= 0", in.rows);
  XCE_CHECK(in.vocab >= 1, "cross-entropy vocab >= 1", in.vocab);
  XCE_CHECK(in.ld == 0 || in.ld >= in.vocab, "ld 0 or >= vocab", in.ld);
  XCE_CHECK(in.shard_offset >= 0, "shard_offset >= 0", in.shard_offset);
  XCE_CHECK(in.rows == 0 || (in.logits && in.targets.index), "logits and targets", "null");
  const size_t bytes = workspace_bytes(exec, args);
  XCE_CHECK(args.workspace && args.workspace_size_bytes >= bytes, str("a workspace of ", bytes, " bytes"),
            args.workspace_size_bytes);
}
void check_whole_vocab(const CrossEntropyInputs& in) {
  XCE_CHECK(in.shard_offset == 0 && in.vocab_global <= in.vocab, "the whole vocabulary, or a shard's statistics alone",
            str("a shard of ", in.vocab_global, " labels"));
}
template <class Args>
void check_dlogits(const Args& args) {
  const CrossEntropyInputs& in = args.in;
  const int64_t ld = args.ld_dlogits;
  XCE_CHECK(in.rows == 0 || args.dlogits, "dlogits", "null");
  XCE_CHECK(ld == 0 || ld >= in.vocab, "ld_dlogits 0 or >= vocab", ld);
  XCE_CHECK(args.dlogits != in.logits || (ld ? ld : in.vocab) == (in.ld ? in.ld : in.vocab),
            "equal leading dimensions of logits and of the dlogits that overwrite them", ld);
}

template <class T>
loss::DeviceRows<T, T> rows_of(const CrossEntropyInputs& in, const LossOptions& options, const Scratch& scratch) {
  loss::DeviceRows<T, T> r{};
  r.logits = static_cast<const T*>(in.logits);
  r.ld = in.ld ? in.ld : in.vocab;
  r.ld_out = r.ld;
  r.rows = in.rows;
  r.vocab_global = in.vocab_global < 0 ? in.shard_offset + in.vocab : in.vocab_global;
  r.cols = std::clamp<int64_t>(r.vocab_global - in.shard_offset, 0, in.vocab);
  r.cols_out = in.vocab;
  r.first_col = in.shard_offset;
  r.targets = in.targets;
  r.options = options;
  r.totals = scratch.totals;
  r.row_loss = scratch.row_loss;
  r.row_z_loss = scratch.row_z_loss;
  return r;
}
template <class T, class Args>
void set_gradient(loss::DeviceRows<T, T>& r, const Args& args) {
  r.dlogits = static_cast<T*>(args.dlogits);
  r.ld_out = args.ld_dlogits ? args.ld_dlogits : args.in.vocab;
  r.upstream = args.upstream;
}

template <class T>
void forward(const CudaExec& exec, const CrossEntropyForward& args) {
  using A = Accum<T>;
  const int64_t rows = args.in.rows;
  const Scratch scratch(args.workspace, rows);
  auto r = rows_of<T>(args.in, args.options, scratch);
  r.out = args.out;
  loss::count_on_device(exec, args.in.targets, rows, r.vocab_global, scratch.totals);
  A* sets = static_cast<A*>(args.statistics);
  if (!sets) sets = reinterpret_cast<A*>(static_cast<char*>(args.workspace) + scratch.bytes);
  const loss::DeviceSet<A> set{sets, sets + rows, sets + 2 * rows};
  loss::launch_statistics(exec, r, set, true);
  loss::launch_losses(exec, r, loss::DeviceSet<const A>{set.max, set.sum, set.target});
  loss::sum_losses(exec, args.in.dtype, r.row_loss, r.row_z_loss, rows, r.totals, true, args.options, args.out);
}

template <class T>
void backward(const CudaExec& exec, const CrossEntropyBackward& args) {
  using A = Accum<T>;
  const Scratch scratch(args.workspace, args.in.rows);
  auto r = rows_of<T>(args.in, args.options, scratch);
  set_gradient(r, args);
  r.offset = const_cast<A*>(static_cast<const A*>(args.offset));
  r.logsum = const_cast<A*>(static_cast<const A*>(args.logsum));
  loss::count_on_device(exec, args.in.targets, args.in.rows, r.vocab_global, scratch.totals);
  loss::launch_gradients(exec, r);
}

template <class T>
void forward_backward(const CudaExec& exec, const CrossEntropyForwardBackward& args) {
  const Scratch scratch(args.workspace, args.in.rows);
  auto r = rows_of<T>(args.in, args.options, scratch);
  set_gradient(r, args);
  r.out = args.out;
  loss::count_on_device(exec, args.in.targets, args.in.rows, r.vocab_global, scratch.totals);
  loss::launch_losses_and_gradients(exec, r);
  loss::sum_losses(exec, args.in.dtype, r.row_loss, r.row_z_loss, r.rows, r.totals, true, args.options, args.out);
}

}  // namespace

size_t workspace_bytes(const CudaExec&, const CrossEntropyForward& args) {
  return Scratch(nullptr, args.in.rows).bytes + 3 * args.in.rows * size_of(accum_dtype(args.in.dtype));
}
size_t workspace_bytes(const CudaExec&, const CrossEntropyBackward& args) {
  return Scratch(nullptr, args.in.rows).bytes;
}
size_t workspace_bytes(const CudaExec&, const CrossEntropyForwardBackward& args) {
  return Scratch(nullptr, args.in.rows).bytes;
}

void launch(const CudaExec& exec, const CrossEntropyForward& args) {
  check(exec, args);
  if (loss::any(args.out)) check_whole_vocab(args.in);
  visit_dtype(args.in.dtype, [&]<class T>(std::type_identity<T>) { forward<T>(exec, args); });
}

void launch(const CudaExec& exec, const CrossEntropyBackward& args) {
  check(exec, args);
  XCE_CHECK(args.in.rows == 0 || (args.offset && args.logsum), "the forward's residual", "null");
  check_dlogits(args);
  visit_dtype(args.in.dtype, [&]<class T>(std::type_identity<T>) { backward<T>(exec, args); });
}

void launch(const CudaExec& exec, const CrossEntropyForwardBackward& args) {
  check(exec, args);
  check_whole_vocab(args.in);
  check_dlogits(args);
  visit_dtype(args.in.dtype, [&]<class T>(std::type_identity<T>) { forward_backward<T>(exec, args); });
}

}  // namespace xce

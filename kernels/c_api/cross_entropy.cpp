// xce_cross_entropy_*: arguments checked, then the op of the same name.
#include "kernels/cross_entropy/cross_entropy.h"

#include "kernels/c_api/arguments.h"

namespace {

using namespace xce;
using namespace xce::c_api;
using Args = xce_cross_entropy_args;

CrossEntropyInputs inputs(const Args& args) {
  return {.logits = args.logits,
          .targets = targets(args.loss),
          .rows = args.loss.rows,
          .vocab = args.loss.vocab,
          .dtype = dtype_of(args.loss.dtype),
          .ld = args.ld,
          .shard_offset = args.loss.shard_offset,
          .vocab_global = vocab_global(args.loss)};
}
CrossEntropyForward forward_of(const Args& args) {
  return {.in = inputs(args),
          .options = options(args.loss),
          .out = outputs(args.loss),
          .statistics = static_cast<double*>(args.statistics),
          .workspace = args.workspace,
          .workspace_size_bytes = args.workspace_size_bytes};
}
CrossEntropyBackward backward_of(const Args& args) {
  CrossEntropyInputs in = inputs(args);
  in.targets = backward_targets(args.loss, args.statistics);
  return {.in = in,
          .options = options(args.loss),
          .offset = args.loss.offset,
          .logsum = args.loss.logsum,
          .upstream = upstream(args.loss),
          .dlogits = args.dlogits,
          .ld_dlogits = args.ld_dlogits,
          .workspace = args.workspace,
          .workspace_size_bytes = args.workspace_size_bytes};
}
CrossEntropyForwardBackward forward_backward_of(const Args& args) {
  return {.in = inputs(args),
          .options = options(args.loss),
          .out = outputs(args.loss),
          .upstream = upstream(args.loss),
          .dlogits = args.dlogits,
          .ld_dlogits = args.ld_dlogits,
          .workspace = args.workspace,
          .workspace_size_bytes = args.workspace_size_bytes};
}

void check_shape(const Args* args) {
  check_struct(args);
  c_api::check_shape(args->loss);
  check_ld(args->ld, args->loss.rows, args->loss.vocab, "args.ld");
  check_ld(args->ld_dlogits, args->loss.rows, args->loss.vocab, "args.ld_dlogits");
}

size_t bytes_of(const xce_context& context, xce_pass pass, const Args& args) {
  switch (pass) {
    case XCE_FORWARD:
      return planned_bytes(context, forward_of(args));
    case XCE_BACKWARD:
      return planned_bytes(context, backward_of(args));
    case XCE_FORWARD_BACKWARD:
      return planned_bytes(context, forward_backward_of(args));
    case XCE_BEGIN_FINISH:
      break;
  }
  throw Failure(XCE_ERROR_INVALID_ARGUMENT,
                str("expected pass XCE_FORWARD, XCE_BACKWARD or XCE_FORWARD_BACKWARD, got ", pass));
}

void check_dlogits(const Args& args, size_t element_bytes) {
  if (args.loss.rows == 0) return;
  check_array(args.dlogits, element_bytes, "args.dlogits");
  const int64_t vocab = args.loss.vocab;
  require(args.dlogits != args.logits || (args.ld ? args.ld : vocab) == (args.ld_dlogits ? args.ld_dlogits : vocab),
          "args.ld_dlogits equal to ld where dlogits overwrite the logits", args.ld_dlogits);
}

void check(const xce_context& context, xce_pass pass, const Args* args) {
  check_shape(args);
  check_device_sizes(context, args->loss);
  const size_t bytes = bytes_of(context, pass, *args);
  c_api::check_arrays(args->loss);
  const size_t element = size_of(dtype_of(args->loss.dtype));
  if (args->loss.rows > 0) check_array(args->logits, element, "args.logits");
  check_optional(args->statistics, sizeof(double), "args.statistics");
  if (pass == XCE_FORWARD_BACKWARD || (pass == XCE_FORWARD && any_output(args->loss))) check_whole_vocab(args->loss);
  if (pass != XCE_FORWARD) check_dlogits(*args, element);
  if (pass == XCE_BACKWARD) check_residual(args->loss, args->statistics);
  check_workspace(args->workspace, args->workspace_size_bytes, bytes);
}

void run_pass(const xce_context& context, xce_pass pass, const Args& args) {
  if (pass == XCE_FORWARD) return run(context.exec, forward_of(args));
  if (pass == XCE_BACKWARD) return run(context.exec, backward_of(args));
  run(context.exec, forward_backward_of(args));
}

}  // namespace

extern "C" {

xce_status xce_cross_entropy_workspace_bytes(xce_context* context, xce_pass pass, const Args* args, size_t* bytes) {
  return call(__func__, context, [&] {
    require(bytes != nullptr, "bytes", "null");
    check_shape(args);
    *bytes = bytes_of(*context, pass, *args);
  });
}

xce_status xce_cross_entropy_prepare(xce_context* context, xce_pass pass, const Args* args) {
  return call(__func__, context, [&] {
    check(*context, pass, args);
    if (!context->on_cpu()) run_pass(*context, pass, *args);
  });
}

xce_status xce_cross_entropy_forward(xce_context* context, const Args* args) {
  return call(__func__, context, [&] {
    check(*context, XCE_FORWARD, args);
    run_pass(*context, XCE_FORWARD, *args);
  });
}

xce_status xce_cross_entropy_backward(xce_context* context, const Args* args) {
  return call(__func__, context, [&] {
    check(*context, XCE_BACKWARD, args);
    run_pass(*context, XCE_BACKWARD, *args);
  });
}

xce_status xce_cross_entropy_forward_backward(xce_context* context, const Args* args) {
  return call(__func__, context, [&] {
    check(*context, XCE_FORWARD_BACKWARD, args);
    run_pass(*context, XCE_FORWARD_BACKWARD, *args);
  });
}
}

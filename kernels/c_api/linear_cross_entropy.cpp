// xce_linear_cross_entropy_*: arguments checked, then the op of the same name.
#include "kernels/linear_cross_entropy/linear_cross_entropy.h"

#include <limits>

#include "kernels/c_api/arguments.h"

namespace {

using namespace xce;
using namespace xce::c_api;
using Args = xce_linear_cross_entropy_args;
using Call = LinearCrossEntropyForwardBackward;

constexpr size_t kDefaultBudgetBytes = size_t{128} << 20;

LossWorkspace workspace(const Args& args) {
  return {.budget_bytes = args.workspace_budget_bytes ? args.workspace_budget_bytes : kDefaultBudgetBytes,
          .data = args.workspace,
          .size_bytes = args.workspace_size_bytes};
}

bool dx_in_accum_dtype(const Args& args) {
  DType dtype = dtype_of(args.loss.dtype);
  return args.dx_dtype != 0 && dtype_of(args.dx_dtype) != dtype;
}

// Every op takes its part of this one.
Call call_of(const Args& args) {
  return {.in = {.x = args.x,
                 .weight = args.weight,
                 .bias = args.bias,
                 .targets = targets(args.loss),
                 .rows = args.loss.rows,
                 .hidden = args.hidden,
                 .vocab = args.loss.vocab,
                 .dtype = dtype_of(args.loss.dtype),
                 .ldx = args.ldx,
                 .ldw = args.ldw,
                 .shard_offset = args.loss.shard_offset,
                 .vocab_global = vocab_global(args.loss)},
          .options = options(args.loss),
          .out = outputs(args.loss),
          .upstream = upstream(args.loss),
          .grad = {.dx = args.dx,
                   .dweight = args.dweight,
                   .dbias = args.dbias,
                   .accumulate_dx = args.accumulate_dx != 0,
                   .accumulate_dweight = args.accumulate_dweight != 0,
                   .dx_in_accum_dtype = dx_in_accum_dtype(args)},
          .workspace = workspace(args)};
}
LinearCrossEntropyForward forward_of(const Call& call, void* statistics) {
  return {
      .in = call.in, .options = call.options, .out = call.out, .workspace = call.workspace, .statistics = statistics};
}
LinearCrossEntropyBackward backward_of(const Call& call, const xce_loss& loss) {
  return {.in = call.in,
          .options = call.options,
          .offset = loss.offset,
          .logsum = loss.logsum,
          .upstream = call.upstream,
          .grad = call.grad,
          .workspace = call.workspace};
}

// What the plan depends on, and fields that have to be zero.
void check_shape(const Args* args) {
  check_struct(args);
  const Args& a = *args;
  c_api::check_shape(a.loss);
  constexpr int64_t kMaxInt = std::numeric_limits<int32_t>::max();  // of the matrix products' sides
  require(a.hidden >= 1, "args.hidden >= 1", a.hidden);
  require_supported(a.hidden <= kMaxInt, "args.hidden below 2^31", a.hidden);
  check_elements(a.loss.rows, a.hidden, "args.loss.rows and args.hidden");
  check_elements(a.loss.vocab, a.hidden, "args.loss.vocab and args.hidden");
  require(a.plan_vocab == 0 || a.plan_vocab >= a.loss.vocab, "args.plan_vocab 0 or >= args.loss.vocab", a.plan_vocab);
  check_elements(a.plan_vocab, std::max(a.loss.rows, a.hidden), "args.plan_vocab and args.loss.rows or args.hidden");
  check_ld(a.ldx, a.hidden, "args.ldx 0 or >= hidden");
  check_ld(a.ldw, a.hidden, "args.ldw 0 or >= hidden");
  require_supported(a.ldw <= kMaxInt, "args.ldw below 2^31", a.ldw);
  require_supported(a.ld_dx == 0 || a.ld_dx == a.hidden, "args.ld_dx 0 or hidden", a.ld_dx);
  require_supported(a.ld_dweight == 0 || a.ld_dweight == a.hidden, "args.ld_dweight 0 or hidden", a.ld_dweight);
  const DType dtype = dtype_of(a.loss.dtype);
  auto is_accum = [&](int32_t type) { return dtype_of(type) == accum_dtype(dtype); };
  require_supported(a.dx_dtype == 0 || dtype_of(a.dx_dtype) == dtype || is_accum(a.dx_dtype),
                    "args.dx_dtype 0, dtype or accum", a.dx_dtype);
  require_supported(a.dweight_dtype == 0 || is_accum(a.dweight_dtype), "args.dweight_dtype 0 or accum",
                    a.dweight_dtype);
  check_flag(a.accumulate_dx, "args.accumulate_dx");
  check_flag(a.accumulate_dweight, "args.accumulate_dweight");
  require_supported(a.allow_tf32 == 0, "args.allow_tf32 0", a.allow_tf32);
  require(a.reserved_flag == 0, "args.reserved_flag 0", a.reserved_flag);
  require_supported(!a.loss.weight_sum, "args.loss.weight_sum null (xce_loss_count gives it)", a.loss.weight_sum);
}

void check_arrays(const xce_context& context, const Args& a) {
  c_api::check_arrays(a.loss);
  const size_t element = size_of(dtype_of(a.loss.dtype)), accum = size_of(accum_dtype(dtype_of(a.loss.dtype)));
  if (a.loss.rows > 0) check_array(a.x, element, "args.x");
  check_array(a.weight, element, "args.weight");
  check_optional(a.bias, element, "args.bias");
  check_optional(a.dx, dx_in_accum_dtype(a) ? accum : element, "args.dx");
  check_optional(a.dweight, accum, "args.dweight");
  check_optional(a.dbias, accum, "args.dbias");
  check_optional(a.statistics, accum, "args.statistics");
  if (!context.on_cpu())
    require_supported(a.loss.vocab <= std::numeric_limits<int32_t>::max(), "args.loss.vocab below 2^31 on a device",
                      a.loss.vocab);
}

LinearCrossEntropyBegin begin_of(const Args& args, const Call& call, int64_t chunk, void* statistics) {
  return {.call = call, .chunk = chunk, .statistics = statistics, .plan_vocab = args.plan_vocab};
}
LinearCrossEntropyFinish finish_of(const Args& args, const Call& call, int64_t chunk, const void* statistics) {
  return {.call = call, .chunk = chunk, .statistics = statistics, .plan_vocab = args.plan_vocab};
}

size_t bytes_of(const xce_context& context, xce_pass pass, const Args& args) {
  const Call call = call_of(args);
  switch (pass) {
    case XCE_FORWARD:
      return planned_bytes(context, forward_of(call, nullptr));
    case XCE_BACKWARD:
      return planned_bytes(context, backward_of(call, args.loss));
    case XCE_FORWARD_BACKWARD:
      return planned_bytes(context, call);
    case XCE_BEGIN_FINISH:
      return planned_bytes(context, begin_of(args, call, 0, nullptr));
  }
  throw Failure(XCE_ERROR_INVALID_ARGUMENT, str("expected a pass, got ", pass));
}

LossChunks chunks_of(const xce_context& context, const Args& args) {
  return std::visit([&](const auto& device) { return chunks(device, call_of(args), args.plan_vocab); }, context.exec);
}

// All that can be wrong with a call of this pass.
void check(const xce_context& context, xce_pass pass, const Args* args) {
  check_shape(args);
  const size_t bytes = bytes_of(context, pass, *args);
  check_arrays(context, *args);
  if (pass == XCE_FORWARD_BACKWARD || (pass == XCE_FORWARD && any_output(args->loss))) check_whole_vocab(args->loss);
  if (pass == XCE_BACKWARD) check_residual(args->loss);
  check_workspace(args->workspace, args->workspace_size_bytes, bytes);
}

void check_chunk(const xce_context& context, const Args* args, int64_t chunk, const void* statistics) {
  check(context, XCE_BEGIN_FINISH, args);
  const int64_t count = chunks_of(context, *args).count;
  require(chunk >= 0 && chunk < count, str("chunk in 0 .. ", count, " - 1").c_str(), chunk);
  check_array(statistics, size_of(accum_dtype(dtype_of(args->loss.dtype))), "statistics");
}

void run_pass(const xce_context& context, xce_pass pass, const Args& args) {
  const Call call = call_of(args);
  switch (pass) {
    case XCE_FORWARD:
      return run(context.exec, forward_of(call, args.statistics));
    case XCE_BACKWARD:
      return run(context.exec, backward_of(call, args.loss));
    case XCE_FORWARD_BACKWARD:
      return run(context.exec, call);
    case XCE_BEGIN_FINISH:
      for (int64_t chunk = 0, count = chunks_of(context, args).count; chunk < count; ++chunk) {
        run(context.exec, begin_of(args, call, chunk, args.statistics));
        run(context.exec, finish_of(args, call, chunk, args.statistics));
      }
  }
}

}  // namespace

extern "C" {

xce_status xce_linear_cross_entropy_workspace_bytes(xce_context* context, xce_pass pass, const Args* args,
                                                    size_t* bytes) {
  return call(__func__, context, [&] {
    require(bytes != nullptr, "bytes", "null");
    check_shape(args);
    *bytes = bytes_of(*context, pass, *args);
  });
}

xce_status xce_linear_cross_entropy_prepare(xce_context* context, xce_pass pass, const Args* args) {
  return call(__func__, context, [&] {
    check(*context, pass, args);
    if (pass == XCE_BEGIN_FINISH)
      check_array(args->statistics, size_of(accum_dtype(dtype_of(args->loss.dtype))), "args.statistics");
    if (context->on_cpu()) return;
    TuningScope tuning(*context);
    run_pass(*context, pass, *args);
  });
}

xce_status xce_linear_cross_entropy_forward(xce_context* context, const Args* args) {
  return call(__func__, context, [&] {
    check(*context, XCE_FORWARD, args);
    run_pass(*context, XCE_FORWARD, *args);
  });
}

xce_status xce_linear_cross_entropy_backward(xce_context* context, const Args* args) {
  return call(__func__, context, [&] {
    check(*context, XCE_BACKWARD, args);
    run_pass(*context, XCE_BACKWARD, *args);
  });
}

xce_status xce_linear_cross_entropy_forward_backward(xce_context* context, const Args* args) {
  return call(__func__, context, [&] {
    check(*context, XCE_FORWARD_BACKWARD, args);
    run_pass(*context, XCE_FORWARD_BACKWARD, *args);
  });
}

xce_status xce_linear_cross_entropy_chunks(xce_context* context, const Args* args, int64_t* count,
                                           int64_t* rows_per_chunk) {
  return call(__func__, context, [&] {
    require(count != nullptr, "count", "null");
    require(rows_per_chunk != nullptr, "rows_per_chunk", "null");
    check_shape(args);
    bytes_of(*context, XCE_BEGIN_FINISH, *args);  // a budget that is too small
    const LossChunks cut = chunks_of(*context, *args);
    *count = cut.count;
    *rows_per_chunk = cut.rows_per_chunk;
  });
}

xce_status xce_linear_cross_entropy_begin(xce_context* context, const Args* args, int64_t chunk, void* statistics) {
  return call(__func__, context, [&] {
    check_chunk(*context, args, chunk, statistics);
    run(context->exec, begin_of(*args, call_of(*args), chunk, statistics));
  });
}

xce_status xce_linear_cross_entropy_finish(xce_context* context, const Args* args, int64_t chunk,
                                           const void* statistics) {
  return call(__func__, context, [&] {
    check_chunk(*context, args, chunk, statistics);
    run(context->exec, finish_of(*args, call_of(*args), chunk, statistics));
  });
}
}

// xce_linear_cross_entropy_*: arguments checked, then the op of the same name.
#include "kernels/linear_cross_entropy/linear_cross_entropy.h"

#include <limits>
#include <utility>

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

// Of checked arguments: a dtype that is not the default, though it may be the same.
bool dx_in_accum_dtype(const Args& args) {
  return args.dx_dtype != 0 && args.dx_dtype != args.loss.dtype;
}
bool dweight_in_dtype(const Args& args) {
  return args.dweight_dtype != 0 && dtype_of(args.dweight_dtype) != accum_dtype(dtype_of(args.loss.dtype));
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
                 .vocab_global = vocab_global(args.loss),
                 .allow_tf32 = args.allow_tf32 != 0},
          .options = options(args.loss),
          .out = outputs(args.loss),
          .upstream = upstream(args.loss),
          .grad = {.dx = args.dx,
                   .dweight = args.dweight,
                   .dbias = args.dbias,
                   .accumulate_dx = args.accumulate_dx != 0,
                   .accumulate_dweight = args.accumulate_dweight != 0,
                   .dx_in_accum_dtype = dx_in_accum_dtype(args),
                   .dweight_in_dtype = dweight_in_dtype(args),
                   .ld_dx = args.ld_dx,
                   .ld_dweight = args.ld_dweight},
          .workspace = workspace(args)};
}
LinearCrossEntropyForward forward_of(const Call& call, void* statistics) {
  return {.in = call.in,
          .options = call.options,
          .out = call.out,
          .workspace = call.workspace,
          .statistics = static_cast<double*>(statistics)};
}
LinearCrossEntropyBackward backward_of(const Call& call, const Args& args) {
  LinearCrossEntropyBackward backward{.in = call.in,
                                      .options = call.options,
                                      .offset = args.loss.offset,
                                      .logsum = args.loss.logsum,
                                      .upstream = call.upstream,
                                      .grad = call.grad,
                                      .workspace = call.workspace};
  backward.in.targets = backward_targets(args.loss, args.statistics);
  return backward;
}

void check_gradients(const Args& a) {
  const DType dtype = dtype_of(a.loss.dtype), accum = accum_dtype(dtype);
  for (auto [type, name] : {std::pair{a.dx_dtype, "args.dx_dtype"}, {a.dweight_dtype, "args.dweight_dtype"}}) {
    if (type == 0) continue;
    const DType given = dtype_of(type, name);
    if (given != dtype && given != accum) refuse(str(name, " 0, dtype or accum"), type);
  }
  check_flag(a.accumulate_dx, "args.accumulate_dx");
  check_flag(a.accumulate_dweight, "args.accumulate_dweight");
  require(!a.accumulate_dweight || !dweight_in_dtype(a), "args.accumulate_dweight 0 where dweight_dtype is not accum",
          a.accumulate_dweight);
  require(!a.dbias || a.bias, "args.dbias null without a bias", a.dbias);
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
  check_ld(a.ldx, a.loss.rows, a.hidden, "args.ldx");
  check_ld(a.ldw, a.loss.vocab, a.hidden, "args.ldw");
  check_ld(a.ld_dx, a.loss.rows, a.hidden, "args.ld_dx");
  check_ld(a.ld_dweight, a.loss.vocab, a.hidden, "args.ld_dweight");
  for (auto [ld, name] :
       {std::pair{a.ldx, "args.ldx"}, {a.ldw, "args.ldw"}, {a.ld_dx, "args.ld_dx"}, {a.ld_dweight, "args.ld_dweight"}})
    if (ld > kMaxInt) require_supported(false, str(name, " below 2^31").c_str(), ld);
  check_gradients(a);
  check_flag(a.allow_tf32, "args.allow_tf32");
  require(a.reserved_flag == 0, "args.reserved_flag 0", a.reserved_flag);
}

void check_arrays(const Args& a) {
  c_api::check_arrays(a.loss);
  const size_t element = size_of(dtype_of(a.loss.dtype)), accum = size_of(accum_dtype(dtype_of(a.loss.dtype)));
  if (a.loss.rows > 0) check_array(a.x, element, "args.x");
  check_array(a.weight, element, "args.weight");
  check_optional(a.bias, element, "args.bias");
  check_optional(a.dx, dx_in_accum_dtype(a) ? accum : element, "args.dx");
  check_optional(a.dweight, dweight_in_dtype(a) ? element : accum, "args.dweight");
  check_optional(a.dbias, dweight_in_dtype(a) ? element : accum, "args.dbias");
  check_optional(a.statistics, sizeof(double), "args.statistics");
}

LinearCrossEntropyBegin begin_of(const Args& args, const Call& call, int64_t chunk, void* statistics) {
  return {.call = call, .chunk = chunk, .statistics = static_cast<double*>(statistics), .plan_vocab = args.plan_vocab};
}
LinearCrossEntropyFinish finish_of(const Args& args, const Call& call, int64_t chunk, const void* statistics) {
  return {.call = call,
          .chunk = chunk,
          .statistics = static_cast<const double*>(statistics),
          .plan_vocab = args.plan_vocab};
}

size_t bytes_of(const xce_context& context, xce_pass pass, const Args& args) {
  const Call call = call_of(args);
  switch (pass) {
    case XCE_FORWARD:
      return planned_bytes(context, forward_of(call, args.statistics));
    case XCE_BACKWARD:
      return planned_bytes(context, backward_of(call, args));
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
  check_device_sizes(context, args->loss);
  const size_t bytes = bytes_of(context, pass, *args);
  check_arrays(*args);
  if (pass == XCE_FORWARD_BACKWARD || (pass == XCE_FORWARD && any_output(args->loss))) check_whole_vocab(args->loss);
  if (pass == XCE_BACKWARD) check_residual(args->loss, args->statistics);
  check_workspace(args->workspace, args->workspace_size_bytes, bytes);
}

void check_chunk(const xce_context& context, const Args* args, int64_t chunk, const void* statistics) {
  check(context, XCE_BEGIN_FINISH, args);
  const int64_t count = chunks_of(context, *args).count;
  if (chunk < 0 || chunk >= count) refuse(str("chunk in 0 .. ", count, " - 1"), chunk);
  check_array(statistics, sizeof(double), "statistics");
}

void run_pass(const xce_context& context, xce_pass pass, const Args& args) {
  const Call call = call_of(args);
  switch (pass) {
    case XCE_FORWARD:
      return run(context.exec, forward_of(call, args.statistics));
    case XCE_BACKWARD:
      return run(context.exec, backward_of(call, args));
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
    if (pass == XCE_BEGIN_FINISH) check_array(args->statistics, sizeof(double), "args.statistics");
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

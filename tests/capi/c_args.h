// The arguments of a kernels' op as the C API takes them: tests state a case once and run it both ways.
#pragma once

#include <gtest/gtest.h>
#include <xce/xce.h>

#include <string>

#include "kernels/cross_entropy/cross_entropy.h"
#include "kernels/linear_cross_entropy/linear_cross_entropy.h"
#include "tests/support/device_test.h"

namespace xce::test {

inline int32_t c_dtype(DType dtype) {
  return dtype == DType::kF32    ? XCE_FLOAT32
         : dtype == DType::kBf16 ? XCE_BFLOAT16
         : dtype == DType::kF16  ? XCE_FLOAT16
                                 : XCE_FLOAT64;
}

inline void set_targets(xce_loss& to, const LossTargets& targets) {
  if (targets.probabilities) {
    to.probabilities = targets.probabilities;
    to.probability_dtype = c_dtype(targets.probability_type);
    to.ld_probabilities = targets.ld_probabilities;
    return;
  }
  to.label_dtype = targets.type == IndexType::kI32 ? XCE_INT32 : XCE_INT64;
  to.labels = targets.index;
  to.label_stride = targets.stride;
  if (targets.ignore_index != -100) to.ignore_index = targets.ignore_index, to.has_ignore_index = 1;
}
inline void set_options(xce_loss& to, const LossOptions& options) {
  to.reduction = options.reduction == Reduction::kMean  ? XCE_MEAN
                 : options.reduction == Reduction::kSum ? XCE_SUM
                                                        : XCE_NONE;
  to.z_loss = options.z_loss, to.label_smoothing = options.label_smoothing;
  to.softcap = options.softcap, to.logit_scale = options.logit_scale;
  to.class_weights = options.class_weights, to.token_weights = options.token_weights;
  to.empty_is_nan = options.empty_is_nan, to.out_of_range_is_nan = options.out_of_range_is_nan;
  to.denominator = options.denominator;
}
inline void set_outputs(xce_loss& to, const LossOutputs& out) {
  to.loss = out.loss, to.loss_total = out.loss_total, to.row_loss = out.row_loss;
  to.offset = out.offset, to.logsum = out.logsum, to.z_loss_part = out.z_loss;
  to.row_max = out.row_max, to.row_entropy = out.row_entropy, to.argmax = out.argmax, to.n_correct = out.n_correct;
  to.n_valid = out.n_valid, to.weight_sum = out.weight_sum;
  to.out_of_range = out.out_of_range, to.first_out_of_range = out.first_out_of_range;
}
inline void set_upstream(xce_loss& to, const LossUpstream& upstream) {
  to.upstream = upstream.gradient;
  to.upstream_stride = upstream.stride;
  to.upstream_is_scalar = upstream.stride == 0;
}

inline xce_linear_cross_entropy_args c_args(const LinearCrossEntropyForwardBackward& call) {
  xce_linear_cross_entropy_args args{};
  args.struct_size = sizeof(args);
  set_targets(args.loss, call.in.targets);
  set_options(args.loss, call.options);
  set_outputs(args.loss, call.out);
  set_upstream(args.loss, call.upstream);
  args.loss.rows = call.in.rows, args.loss.vocab = call.in.vocab, args.hidden = call.in.hidden;
  args.loss.dtype = c_dtype(call.in.dtype);
  args.loss.shard_offset = call.in.shard_offset;
  args.loss.vocab_global = call.in.vocab_global < 0 ? 0 : call.in.vocab_global;
  args.x = call.in.x, args.weight = call.in.weight, args.bias = call.in.bias;
  args.ldx = call.in.ldx, args.ldw = call.in.ldw;
  args.allow_tf32 = call.in.allow_tf32;
  args.dx = call.grad.dx, args.dweight = call.grad.dweight, args.dbias = call.grad.dbias;
  args.ld_dx = call.grad.ld_dx, args.ld_dweight = call.grad.ld_dweight;
  args.accumulate_dx = call.grad.accumulate_dx, args.accumulate_dweight = call.grad.accumulate_dweight;
  if (call.grad.dx_in_accum_dtype) args.dx_dtype = c_dtype(accum_dtype(call.in.dtype));
  if (call.grad.dweight_in_dtype) args.dweight_dtype = c_dtype(call.in.dtype);
  args.workspace = call.workspace.data;
  args.workspace_size_bytes = call.workspace.size_bytes;
  args.workspace_budget_bytes = call.workspace.budget_bytes;
  return args;
}

inline xce_cross_entropy_args c_args(const CrossEntropyForwardBackward& call) {
  xce_cross_entropy_args args{};
  args.struct_size = sizeof(args);
  set_targets(args.loss, call.in.targets);
  set_options(args.loss, call.options);
  set_outputs(args.loss, call.out);
  set_upstream(args.loss, call.upstream);
  args.loss.rows = call.in.rows, args.loss.vocab = call.in.vocab, args.loss.dtype = c_dtype(call.in.dtype);
  args.loss.shard_offset = call.in.shard_offset;
  args.loss.vocab_global = call.in.vocab_global < 0 ? 0 : call.in.vocab_global;
  args.logits = call.in.logits, args.ld = call.in.ld;
  args.dlogits = call.dlogits, args.ld_dlogits = call.ld_dlogits;
  return args;
}

// A call's status as an assertion: its message when it is not XCE_OK.
inline ::testing::AssertionResult ok(xce_status status) {
  if (status == XCE_OK) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << xce_status_string(status) << ": " << xce_last_error();
}

// A context on the tests' device, with as many threads as DeviceTest's exec has.
class CContext {
 public:
  explicit CContext(bool on_gpu, int threads = 3) {
    EXPECT_TRUE(ok(on_gpu ? xce_context_create_cuda(0, &context_) : xce_context_create_cpu(threads, &context_)));
  }
  ~CContext() { xce_context_destroy(context_); }
  CContext(const CContext&) = delete;
  operator xce_context*() const { return context_; }

 private:
  xce_context* context_ = nullptr;
};

}  // namespace xce::test

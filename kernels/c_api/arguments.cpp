#include "kernels/c_api/arguments.h"

#include "kernels/cross_entropy/loss_rows.h"

namespace xce::c_api {
namespace {

constexpr int64_t kMaxElements = int64_t{1} << 58;
constexpr size_t kWorkspaceAlign = 16;

bool aligned(const void* array, size_t bytes) {
  return reinterpret_cast<uintptr_t>(array) % bytes == 0;
}

size_t accum_bytes(const xce_loss& loss) {
  return size_of(accum_dtype(dtype_of(loss.dtype)));
}

// Numbers that fp32 holds with room, so that no product of two of them meets a zero or an infinity of its making.
constexpr double kMaxNumber = 1e30;

void check_number(double value, double least, const char* expectation) {
  require(value >= least && value <= kMaxNumber, expectation, value);  // false for NaN
}

DType probability_type(const xce_loss& loss) {
  return dtype_of(loss.probability_dtype ? loss.probability_dtype : loss.dtype, "args.loss.probability_dtype");
}

void check_numbers(const xce_loss& loss) {
  check_number(loss.z_loss, 0, "args.loss.z_loss in 0 .. 1e30");
  require(loss.label_smoothing >= 0 && loss.label_smoothing <= 1, "args.loss.label_smoothing in 0 .. 1",
          loss.label_smoothing);
  if (loss.softcap != 0) check_number(loss.softcap, 1 / kMaxNumber, "args.loss.softcap 0, or in 1e-30 .. 1e30");
  check_number(loss.logit_scale, -kMaxNumber, "args.loss.logit_scale in -1e30 .. 1e30");
}

// Of probabilities a shard knows only its part of a row's mass, which is an array of the merged statistics.
constexpr int64_t kMassArray = 4;
bool mass_is_elsewhere(const xce_loss& loss) {
  return loss.probabilities && (loss.shard_offset != 0 || loss.vocab_global > loss.vocab);
}

// Labels or probabilities: of which kind, and that they do not contradict what else is asked for.
void check_targets(const xce_loss& loss) {
  if (!loss.probabilities) {
    if (loss.rows == 0) return;  // an empty array's address may be null
    require(loss.label_dtype == XCE_INT32 || loss.label_dtype == XCE_INT64,
            "args.loss.label_dtype XCE_INT32 or XCE_INT64", loss.label_dtype);
    require(loss.ld_probabilities == 0, "args.loss.ld_probabilities 0 without probabilities", loss.ld_probabilities);
    require(loss.probability_dtype == 0, "args.loss.probability_dtype 0 without probabilities", loss.probability_dtype);
    check_strided(loss.rows, loss.label_stride, "args.loss.rows and args.loss.label_stride");
    return;
  }
  require(!loss.labels, "args.loss.labels null beside probabilities", loss.labels);
  require(loss.has_ignore_index == 0,
          "args.loss.has_ignore_index 0 with probabilities (a token weight of 0 leaves a row out)",
          loss.has_ignore_index);
  require(!loss.n_correct, "args.loss.n_correct null with probabilities", loss.n_correct);
  probability_type(loss);
  check_ld(loss.ld_probabilities, loss.rows, loss.vocab, "args.loss.ld_probabilities");
}

}  // namespace

void check_flag(int32_t flag, const char* name) {
  if (flag != 0 && flag != 1) refuse(str(name, " 0 or 1"), flag);
}

void check_array(const void* array, size_t element_bytes, const char* name) {
  require(array != nullptr, name, "null");
  check_optional(array, element_bytes, name);
}
void check_optional(const void* array, size_t element_bytes, const char* name) {
  if (!aligned(array, element_bytes)) refuse(str(name, " aligned to ", element_bytes, " bytes"), array);
}

void check_elements(int64_t rows, int64_t cols, const char* names) {
  if (cols != 0 && rows > kMaxElements / cols)
    refuse(str(names, " with a product of at most 2^58"), str(rows, " and ", cols));
}
void check_strided(int64_t rows, int64_t stride, const char* names) {
  if (stride < -kMaxElements || stride > kMaxElements)
    refuse(str(names, " with a product of at most 2^58"), str(rows, " and ", stride));
  check_elements(rows, stride < 0 ? -stride : stride, names);
}

void check_ld(int64_t ld, int64_t rows, int64_t cols, const char* name) {
  if (ld != 0 && (ld < cols || ld > kMaxElements)) refuse(str(name, " 0 or ", cols, " .. 2^58"), ld);
  if (ld != 0 && rows > kMaxElements / ld) refuse(str(name, " whose product with the rows is at most 2^58"), ld);
}

void check_workspace(const void* workspace, size_t size_bytes, size_t needed_bytes) {
  if (needed_bytes == 0) return;
  auto fail = [](const std::string& what, const auto& got) {
    throw Failure(XCE_ERROR_WORKSPACE, str("expected ", what, ", got ", got));
  };
  if (!workspace) fail(str("args.workspace of ", needed_bytes, " bytes"), "null");
  if (!aligned(workspace, kWorkspaceAlign))
    fail(str("args.workspace aligned to ", kWorkspaceAlign, " bytes"), workspace);
  if (size_bytes < needed_bytes) fail(str("args.workspace_size_bytes of at least ", needed_bytes), size_bytes);
}

DType dtype_of(int32_t dtype, const char* name) {
  switch (dtype) {
    case XCE_FLOAT32:
      return DType::kF32;
    case XCE_BFLOAT16:
      return DType::kBf16;
    case XCE_FLOAT64:
      return DType::kF64;
    case XCE_FLOAT16:
      return DType::kF16;
  }
  throw Failure(XCE_ERROR_INVALID_ARGUMENT,
                str("expected ", name, " XCE_FLOAT32, XCE_BFLOAT16, XCE_FLOAT16 or XCE_FLOAT64, got ", dtype));
}

void check_shape(const xce_loss& loss) {
  dtype_of(loss.dtype, "args.loss.dtype");
  require(loss.rows >= 0, "args.loss.rows >= 0", loss.rows);
  require(loss.vocab >= 1, "args.loss.vocab >= 1", loss.vocab);
  check_elements(loss.rows, loss.vocab, "args.loss.rows and args.loss.vocab");
  require(loss.shard_offset >= 0 && loss.shard_offset <= kMaxElements, "args.loss.shard_offset in 0 .. 2^58",
          loss.shard_offset);
  require(loss.vocab_global >= 0, "args.loss.vocab_global 0 (shard_offset + vocab) or >= 1", loss.vocab_global);
  require(loss.reduction == XCE_MEAN || loss.reduction == XCE_SUM || loss.reduction == XCE_NONE,
          "args.loss.reduction XCE_MEAN, XCE_SUM or XCE_NONE", loss.reduction);
  check_numbers(loss);
  check_flag(loss.has_ignore_index, "args.loss.has_ignore_index");
  require(loss.has_ignore_index || loss.ignore_index == 0,
          "args.loss.has_ignore_index 1 with an ignore_index, or ignore_index 0", loss.ignore_index);
  check_flag(loss.empty_is_nan, "args.loss.empty_is_nan");
  check_flag(loss.out_of_range_is_nan, "args.loss.out_of_range_is_nan");
  check_flag(loss.upstream_is_scalar, "args.loss.upstream_is_scalar");
  require(!loss.denominator || loss.reduction == XCE_MEAN, "args.loss.denominator null unless reduction is XCE_MEAN",
          loss.reduction);
  check_targets(loss);
  check_strided(loss.rows, loss.upstream_stride, "args.loss.rows and args.loss.upstream_stride");
  for (uint64_t word : loss.reserved) require(word == 0, "args.loss.reserved 0", word);
}

void check_device_sizes(const xce_context& context, const xce_loss& loss) {
  if (context.on_cpu()) return;
  constexpr int64_t kLimit = int64_t{1} << 30;
  require_supported(loss.rows < kLimit, "args.loss.rows below 2^30 on a GPU", loss.rows);
  require_supported(loss.vocab < kLimit, "args.loss.vocab below 2^30 on a GPU", loss.vocab);
}

void check_arrays(const xce_loss& loss) {
  const size_t accum = accum_bytes(loss);
  if (loss.probabilities)
    check_array(loss.probabilities, size_of(probability_type(loss)), "args.loss.probabilities");
  else if (loss.rows > 0)
    check_array(loss.labels, loss.label_dtype == XCE_INT32 ? 4 : 8, "args.loss.labels (or probabilities)");
  check_optional(loss.class_weights, accum, "args.loss.class_weights");
  check_optional(loss.token_weights, accum, "args.loss.token_weights");
  check_optional(loss.denominator, 8, "args.loss.denominator");
  check_optional(loss.upstream, accum, "args.loss.upstream");
  check_optional(loss.loss, accum, "args.loss.loss");
  check_optional(loss.loss_total, 8, "args.loss.loss_total");
  check_optional(loss.row_loss, accum, "args.loss.row_loss");
  check_optional(loss.offset, accum, "args.loss.offset");
  check_optional(loss.logsum, accum, "args.loss.logsum");
  check_optional(loss.z_loss_part, accum, "args.loss.z_loss_part");
  check_optional(loss.row_max, accum, "args.loss.row_max");
  check_optional(loss.row_entropy, accum, "args.loss.row_entropy");
  check_optional(loss.argmax, 8, "args.loss.argmax");
  check_optional(loss.n_correct, 8, "args.loss.n_correct");
  check_optional(loss.n_valid, 8, "args.loss.n_valid");
  check_optional(loss.out_of_range, 8, "args.loss.out_of_range");
  check_optional(loss.first_out_of_range, 8, "args.loss.first_out_of_range");
  check_optional(loss.weight_sum, 8, "args.loss.weight_sum");
}

void check_whole_vocab(const xce_loss& loss) {
  constexpr const char* kWhy = " (results of one shard alone: ask for statistics, or use begin and finish)";
  if (loss.shard_offset != 0) refuse(str("args.loss.shard_offset 0", kWhy), loss.shard_offset);
  if (loss.vocab_global > loss.vocab)
    refuse(str("args.loss.vocab_global of at most vocab ", loss.vocab, kWhy), loss.vocab_global);
}

void check_residual(const xce_loss& loss, const void* statistics) {
  if (loss.rows == 0) return;
  if (mass_is_elsewhere(loss)) check_array(statistics, sizeof(double), "args.statistics, merged, of the shards");
  check_array(loss.offset, accum_bytes(loss), "args.loss.offset");
  check_array(loss.logsum, accum_bytes(loss), "args.loss.logsum");
}

LossTargets backward_targets(const xce_loss& loss, const void* statistics) {
  LossTargets to = targets(loss);
  if (mass_is_elsewhere(loss) && statistics)
    to.probability_mass = static_cast<const double*>(statistics) + kMassArray * loss.rows;
  return to;
}

int64_t vocab_global(const xce_loss& loss) {
  return loss.vocab_global ? loss.vocab_global : loss.shard_offset + loss.vocab;
}

LossTargets targets(const xce_loss& loss) {
  if (loss.probabilities)
    return {.probabilities = loss.probabilities,
            .probability_type = probability_type(loss),
            .ld_probabilities = loss.ld_probabilities};
  return {.index = loss.labels,
          .type = loss.label_dtype == XCE_INT32 ? IndexType::kI32 : IndexType::kI64,
          .stride = loss.label_stride ? loss.label_stride : 1,
          .ignore_index = loss.has_ignore_index ? loss.ignore_index : -100};
}

LossOptions options(const xce_loss& loss) {
  return {.reduction = loss.reduction == XCE_MEAN  ? Reduction::kMean
                       : loss.reduction == XCE_SUM ? Reduction::kSum
                                                   : Reduction::kNone,
          .z_loss = loss.z_loss,
          .label_smoothing = loss.label_smoothing,
          .softcap = loss.softcap,
          .logit_scale = loss.logit_scale == 0 ? 1 : loss.logit_scale,
          .class_weights = loss.class_weights,
          .token_weights = loss.token_weights,
          .denominator = loss.denominator,
          .empty_is_nan = loss.empty_is_nan != 0,
          .out_of_range_is_nan = loss.out_of_range_is_nan != 0};
}

LossOutputs outputs(const xce_loss& loss) {
  return {.loss = loss.loss,
          .loss_total = loss.loss_total,
          .row_loss = loss.row_loss,
          .offset = loss.offset,
          .logsum = loss.logsum,
          .z_loss = loss.z_loss_part,
          .row_max = loss.row_max,
          .row_entropy = loss.row_entropy,
          .argmax = loss.argmax,
          .n_correct = loss.n_correct,
          .n_valid = loss.n_valid,
          .weight_sum = loss.weight_sum,
          .out_of_range = loss.out_of_range,
          .first_out_of_range = loss.first_out_of_range};
}
bool any_output(const xce_loss& loss) {
  return loss::any(outputs(loss));
}

LossUpstream upstream(const xce_loss& loss) {
  return {.gradient = loss.upstream,
          .stride = loss.upstream_is_scalar ? 0
                    : loss.upstream_stride  ? loss.upstream_stride
                                            : 1};
}

}  // namespace xce::c_api

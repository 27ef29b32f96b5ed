// Checks an xce_loss and the shapes around it, naming the public fields, and turns it into what the kernels take.
#pragma once

#include "kernels/c_api/context.h"
#include "kernels/cross_entropy/loss.h"

namespace xce::c_api {

// A call's struct as the caller laid it out: only this header's size is known so far.
template <class Args>
void check_struct(const Args* args) {
  require(args != nullptr, "args", "null");
  if (args->struct_size != sizeof(Args)) refuse(str("args.struct_size ", sizeof(Args)), args->struct_size);
  for (uint64_t word : args->reserved) require(word == 0, "args.reserved 0", word);
}

void check_flag(int32_t flag, const char* name);  // 0 or 1
// Not null, aligned to its elements.
void check_array(const void* array, size_t element_bytes, const char* name);
void check_optional(const void* array, size_t element_bytes, const char* name);  // null or aligned
// Products of sizes that arithmetic in 64-bit bytes holds.
void check_elements(int64_t rows, int64_t cols, const char* names);
void check_strided(int64_t rows, int64_t stride, const char* names);      // the same of a stride of any sign
void check_ld(int64_t ld, int64_t rows, int64_t cols, const char* name);  // 0 or at least cols
void check_workspace(const void* workspace, size_t size_bytes, size_t needed_bytes);

DType dtype_of(int32_t dtype, const char* name = "dtype");
// Rows, vocabulary, dtype and options: what shapes and plans depend on; and every field that has to be zero.
void check_shape(const xce_loss& loss);
// What a device's kernels count in 32 bits: rows and columns of either loss.
void check_device_sizes(const xce_context& context, const xce_loss& loss);
// Also the arrays that are there, labels among them.
void check_arrays(const xce_loss& loss);
// Losses of a call that sees one shard alone would be wrong in silence.
void check_whole_vocab(const xce_loss& loss);
// Of backward: the residual and, of a shard with probabilities, the merged statistics.
void check_residual(const xce_loss& loss, const void* statistics);
// The targets of a backward, which takes a row's mass from merged statistics where a shard cannot know it.
LossTargets backward_targets(const xce_loss& loss, const void* statistics);

int64_t vocab_global(const xce_loss& loss);
LossTargets targets(const xce_loss& loss);
LossOptions options(const xce_loss& loss);
LossOutputs outputs(const xce_loss& loss);
LossUpstream upstream(const xce_loss& loss);
bool any_output(const xce_loss& loss);

// workspace_bytes of checked arguments can fail for one reason: the budget.
template <class Args>
size_t planned_bytes(const xce_context& context, const Args& args) {
  try {
    return workspace_bytes(context.exec, args);
  } catch (const Error& error) {
    throw Failure(XCE_ERROR_WORKSPACE, str("args.workspace_budget_bytes: ", error.what()));
  }
}

}  // namespace xce::c_api

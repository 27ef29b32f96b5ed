// Calls of the C API on the arrays of a LossRun, with as much workspace as they ask for.
#pragma once

#include "tests/capi/c_args.h"
#include "tests/support/loss_harness.h"

namespace xce::test {

using Scratch = Vector<std::max_align_t>;

// Runs one pass with as much workspace as it asks for.
inline void run_pass(xce_context* context, xce_pass pass, xce_linear_cross_entropy_args args) {
  size_t bytes = 0;
  ASSERT_TRUE(ok(xce_linear_cross_entropy_workspace_bytes(context, pass, &args, &bytes)));
  EXPECT_LE(bytes, args.workspace_budget_bytes);
  Scratch scratch(bytes / sizeof(std::max_align_t) + 1);
  args.workspace = scratch.data();
  args.workspace_size_bytes = bytes;
  auto call = pass == XCE_FORWARD    ? xce_linear_cross_entropy_forward
              : pass == XCE_BACKWARD ? xce_linear_cross_entropy_backward
                                     : xce_linear_cross_entropy_forward_backward;
  EXPECT_TRUE(ok(call(context, &args)));
}
inline void run_pass(xce_context* context, xce_pass pass, xce_cross_entropy_args args) {
  size_t bytes = 0;
  ASSERT_TRUE(ok(xce_cross_entropy_workspace_bytes(context, pass, &args, &bytes)));
  Scratch scratch(bytes / sizeof(std::max_align_t) + 1);
  args.workspace = scratch.data();
  args.workspace_size_bytes = bytes;
  auto call = pass == XCE_FORWARD    ? xce_cross_entropy_forward
              : pass == XCE_BACKWARD ? xce_cross_entropy_backward
                                     : xce_cross_entropy_forward_backward;
  EXPECT_TRUE(ok(call(context, &args)));
}

}  // namespace xce::test

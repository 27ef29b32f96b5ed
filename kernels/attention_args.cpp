// What every device checks before it computes.
#include <cmath>

#include "kernels/attention.h"
#include "kernels/base/check.h"

namespace xce {
namespace {

constexpr const char* name_of(const AttentionForward&) {
  return "AttentionForward";
}
constexpr const char* name_of(const AttentionBackward&) {
  return "AttentionBackward";
}

template <class Args>
void check_common_sizes(const Args& g) {
  const char* name = name_of(g);
  XCE_CHECK(g.batch >= 0, str(name, ".batch >= 0"), g.batch);
  XCE_CHECK(g.seq_len >= 0, str(name, ".seq_len >= 0"), g.seq_len);
  XCE_CHECK(g.head_dim >= 1, str(name, ".head_dim >= 1"), g.head_dim);
  XCE_CHECK(g.kv_heads >= 1, str(name, ".kv_heads >= 1"), g.kv_heads);
  XCE_CHECK(g.heads >= 1 && g.heads % g.kv_heads == 0, str(name, ".heads a multiple of kv_heads ", g.kv_heads),
            g.heads);
  XCE_CHECK(g.qkv_stride >= g.heads * g.head_dim, str(name, ".qkv_stride >= heads * head_dim"), g.qkv_stride);
  XCE_CHECK(std::isfinite(g.scale), str(name, ".scale finite"), g.scale);
}

template <class Args>
void check_common_arrays(const Args& g, size_t needed_workspace_bytes) {
  const char* name = name_of(g);
  XCE_CHECK(g.q, str(name, ".q not null"), "null");
  XCE_CHECK(g.k, str(name, ".k not null"), "null");
  XCE_CHECK(g.v, str(name, ".v not null"), "null");
  XCE_CHECK(g.o, str(name, ".o not null"), "null");
  XCE_CHECK(g.workspace || needed_workspace_bytes == 0, str(name, ".workspace not null"), "null");
  XCE_CHECK(g.workspace_size_bytes >= needed_workspace_bytes,
            str(name, ".workspace_size_bytes >= ", needed_workspace_bytes), g.workspace_size_bytes);
}

}  // namespace

void check_sizes(const AttentionForward& args) {
  check_common_sizes(args);
}
void check_sizes(const AttentionBackward& args) {
  check_common_sizes(args);
  XCE_CHECK(args.dqkv_stride >= args.heads * args.head_dim, "AttentionBackward.dqkv_stride >= heads * head_dim",
            args.dqkv_stride);
}

void check_args(const AttentionForward& args, size_t needed_workspace_bytes) {
  check_sizes(args);
  if (args.batch == 0 || args.seq_len == 0) return;
  check_common_arrays(args, needed_workspace_bytes);
}
void check_args(const AttentionBackward& args, size_t needed_workspace_bytes) {
  check_sizes(args);
  if (args.batch == 0 || args.seq_len == 0) return;
  check_common_arrays(args, needed_workspace_bytes);
  XCE_CHECK(args.lse, "AttentionBackward.lse not null", "null");
  XCE_CHECK(args.d_o, "AttentionBackward.d_o not null", "null");
  XCE_CHECK(args.dq, "AttentionBackward.dq not null", "null");
  XCE_CHECK(args.dk, "AttentionBackward.dk not null", "null");
  XCE_CHECK(args.dv, "AttentionBackward.dv not null", "null");
}

}  // namespace xce

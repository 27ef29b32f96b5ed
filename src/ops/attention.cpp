#include "kernels/attention.h"

#include <cmath>

#include "src/ops/ops.h"

namespace xce {
namespace {

// The three parts of a fused row [q | k | v].
struct Parts {
  char *q, *k, *v;
  Parts(void* qkv, const Heads& heads, DType dtype) {
    int64_t element = static_cast<int64_t>(size_of(dtype));
    q = static_cast<char*>(qkv);
    k = q ? q + heads.query * heads.dim * element : nullptr;
    v = q ? k + heads.key_value * heads.dim * element : nullptr;
  }
};

}  // namespace

Var attention(const Var& qkv, Heads heads) {
  Tape& tape = qkv.tape();
  int64_t batch = qkv.rows() / heads.seq_len;
  double scale = 1 / std::sqrt(static_cast<double>(heads.dim));
  Var y = tape.make({qkv.rows(), heads.query * heads.dim});
  Var lse = tape.make({batch * heads.query, heads.seq_len}, accum_dtype(qkv.dtype()));
  Parts in(qkv.data(), heads, qkv.dtype());
  tape.run_with_workspace(AttentionForward{.q = in.q,
                                           .k = in.k,
                                           .v = in.v,
                                           .qkv_stride = qkv.cols(),
                                           .o = y.data(),
                                           .lse = lse.data(),
                                           .workspace = nullptr,
                                           .workspace_size_bytes = 0,
                                           .batch = batch,
                                           .seq_len = heads.seq_len,
                                           .heads = heads.query,
                                           .kv_heads = heads.key_value,
                                           .head_dim = heads.dim,
                                           .dtype = qkv.dtype(),
                                           .scale = scale});
  tape.on_backward(y, [&tape, qkv, y, lse, heads, batch, scale](const Grad& dy) {
    GradOut dqkv = tape.grad_out(qkv);
    XCE_CHECK(!dqkv.accumulate, "attention as the only user of its qkv", "another gradient");
    Parts in(qkv.data(), heads, qkv.dtype()), out(dqkv.data, heads, qkv.dtype());
    tape.run_with_workspace(AttentionBackward{.q = in.q,
                                              .k = in.k,
                                              .v = in.v,
                                              .qkv_stride = qkv.cols(),
                                              .o = y.data(),
                                              .lse = lse.data(),
                                              .d_o = Tape::data(dy),
                                              .dq = out.q,
                                              .dk = out.k,
                                              .dv = out.v,
                                              .dqkv_stride = qkv.cols(),
                                              .workspace = nullptr,
                                              .workspace_size_bytes = 0,
                                              .batch = batch,
                                              .seq_len = heads.seq_len,
                                              .heads = heads.query,
                                              .kv_heads = heads.key_value,
                                              .head_dim = heads.dim,
                                              .dtype = qkv.dtype(),
                                              .scale = scale});
  });
  return y;
}

}  // namespace xce

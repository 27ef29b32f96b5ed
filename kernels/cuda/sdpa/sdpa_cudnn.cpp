// The one file that sees cuDNN. Its deterministic backward keeps the gradient of the scores, seq_len^2 of them for each
// head, so backward goes through the batch in pieces that share a bounded workspace; pieces change no bit.
#include <cudnn_frontend.h>

#include <algorithm>
#include <compare>
#include <map>
#include <unordered_map>

#include "kernels/base/cuda_check.h"
#include "kernels/cuda/sdpa/sdpa.h"

namespace xce::cuda {
namespace {

namespace fe = cudnn_frontend;
using Tensor = std::shared_ptr<fe::graph::Tensor_attributes>;
using Dims = std::vector<int64_t>;

enum Uid : int64_t { kQ = 1, kK, kV, kO, kLse, kDO, kDQ, kDK, kDV };

// Of batch 4, seq_len 4096, heads 32/8, head_dim 64 on an H200, backward took 2.28 ms in one piece of 4.1 GiB, 2.66 in
// four of 1.0 GiB, 3.16 in eight; 1.85 in free order, whose bits change from run to run.
constexpr size_t kMostPieceBytes = size_t{9} << 29;  // 4.5 GiB
constexpr size_t kSlackBytes = size_t{1} << 20;      // small things that cuDNN rounds up or adds

void check(fe::error_t status, const char* what) {
  if (status.is_good()) return;
  throw Error(ErrorCode::kRuntime, str("cuDNN's attention, ", what, ": ", status.get_message()));
}
void check(cudnnStatus_t status, const char* call) {
  if (status == CUDNN_STATUS_SUCCESS) return;
  throw Error(ErrorCode::kRuntime, str(call, ": ", cudnnGetErrorString(status)));
}

// What one plan computes: `batch` sequences of `kv_heads` key/value heads with their query heads.
struct Piece {
  int64_t batch, kv_heads, group, seq_len, head_dim, qkv_stride, o_stride, dqkv_stride;
  double scale;
  bool backward, wants_lse, deterministic;
  auto operator<=>(const Piece&) const = default;

  int64_t heads() const { return kv_heads * group; }
};

Piece whole(const Sdpa& g) {
  return {.batch = g.batch,
          .kv_heads = g.kv_heads,
          .group = g.heads / g.kv_heads,
          .seq_len = g.seq_len,
          .head_dim = g.head_dim,
          .qkv_stride = g.qkv_stride,
          .o_stride = g.heads * g.head_dim,
          .dqkv_stride = g.backward ? g.dqkv_stride : 0,
          .scale = g.scale,
          .backward = g.backward,
          .wants_lse = g.backward || g.lse,
          .deterministic = g.deterministic};
}

constexpr int64_t round_up(int64_t n, int64_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

// What cuDNN 9.14 asks for, to the byte but for the slack: the dot products of d_o and o; for grouped heads dk and dv
// of every query head; and the gradients of all scores, or in free order dq in fp32.
size_t bytes_of(const Piece& p) {
  if (!p.backward) return kSlackBytes;
  const int64_t rows = p.batch * p.heads() * p.seq_len;
  int64_t bytes = rows * 4;
  if (p.group > 1) bytes += 2 * rows * p.head_dim * 2;
  if (p.deterministic)
    bytes += p.batch * p.heads() * round_up(p.seq_len, 64) * round_up(p.seq_len, 128) * 2;
  else
    bytes += rows * p.head_dim * 4;
  return static_cast<size_t>(bytes) + kSlackBytes;
}

// The largest piece of at most kMostPieceBytes: whole sequences, else key/value heads of one; at the least one of them.
Piece piece_of(const Sdpa& g) {
  Piece piece = whole(g);
  const auto fits = [&] { return bytes_of(piece) <= kMostPieceBytes; };
  while (!fits() && piece.batch > 1) piece.batch = (piece.batch + 1) / 2;
  while (!fits() && piece.kv_heads > 1) piece.kv_heads = (piece.kv_heads + 1) / 2;
  return piece;
}

fe::graph::Tensor_attributes bf16_rows(const char* name, Uid uid, const Piece& p, int64_t heads, int64_t row_stride) {
  return fe::graph::Tensor_attributes()
      .set_name(name)
      .set_uid(uid)
      .set_dim({p.batch, heads, p.seq_len, p.head_dim})
      .set_stride({p.seq_len * row_stride, p.head_dim, row_stride, 1});
}
void describe_output(const Tensor& t, const fe::graph::Tensor_attributes& like) {
  t->set_output(true).set_name(like.get_name()).set_uid(like.get_uid()).set_dim(like.get_dim());
  t->set_stride(like.get_stride()).set_data_type(fe::DataType_t::BFLOAT16);
}
fe::graph::Tensor_attributes lse_of(const Piece& p) {
  return fe::graph::Tensor_attributes()
      .set_name("lse")
      .set_uid(kLse)
      .set_dim({p.batch, p.heads(), p.seq_len, 1})
      .set_stride({p.heads() * p.seq_len, p.seq_len, 1, 1})
      .set_data_type(fe::DataType_t::FLOAT);
}

void add_forward(fe::graph::Graph& graph, const Piece& p) {
  Tensor q = graph.tensor(bf16_rows("q", kQ, p, p.heads(), p.qkv_stride));
  Tensor k = graph.tensor(bf16_rows("k", kK, p, p.kv_heads, p.qkv_stride));
  Tensor v = graph.tensor(bf16_rows("v", kV, p, p.kv_heads, p.qkv_stride));
  auto options = fe::graph::SDPA_attributes()
                     .set_name("attention")
                     .set_attn_scale(static_cast<float>(p.scale))
                     .set_generate_stats(p.wants_lse)
                     .set_causal_mask(true);
  auto [o, lse] = graph.sdpa(q, k, v, options);
  describe_output(o, bf16_rows("o", kO, p, p.heads(), p.o_stride));
  if (!p.wants_lse) return;
  const auto like = lse_of(p);
  lse->set_output(true).set_name("lse").set_uid(kLse).set_dim(like.get_dim()).set_stride(like.get_stride());
  lse->set_data_type(fe::DataType_t::FLOAT);
}

void add_backward(fe::graph::Graph& graph, const Piece& p) {
  Tensor q = graph.tensor(bf16_rows("q", kQ, p, p.heads(), p.qkv_stride));
  Tensor k = graph.tensor(bf16_rows("k", kK, p, p.kv_heads, p.qkv_stride));
  Tensor v = graph.tensor(bf16_rows("v", kV, p, p.kv_heads, p.qkv_stride));
  Tensor o = graph.tensor(bf16_rows("o", kO, p, p.heads(), p.o_stride));
  Tensor d_o = graph.tensor(bf16_rows("d_o", kDO, p, p.heads(), p.o_stride));
  Tensor lse = graph.tensor(lse_of(p));
  auto options = fe::graph::SDPA_backward_attributes()
                     .set_name("attention backward")
                     .set_attn_scale(static_cast<float>(p.scale))
                     .set_causal_mask(true)
                     .set_deterministic_algorithm(p.deterministic);
  auto [dq, dk, dv] = graph.sdpa_backward(q, k, v, o, d_o, lse, options);
  describe_output(dq, bf16_rows("dq", kDQ, p, p.heads(), p.dqkv_stride));
  describe_output(dk, bf16_rows("dk", kDK, p, p.kv_heads, p.dqkv_stride));
  describe_output(dv, bf16_rows("dv", kDV, p, p.kv_heads, p.dqkv_stride));
}

std::string describe(const Piece& p) {
  return str(p.backward ? "backward" : "forward", " of batch ", p.batch, ", seq_len ", p.seq_len, ", heads ", p.heads(),
             "/", p.kv_heads, ", head_dim ", p.head_dim);
}

}  // namespace

struct SdpaPlans::State {
  cudnnHandle_t handle = nullptr;
  std::map<Piece, std::unique_ptr<fe::graph::Graph>> plans;

  State() { check(cudnnCreate(&handle), "cudnnCreate"); }
  ~State() {
    plans.clear();
    cudnnDestroy(handle);
  }
  State(const State&) = delete;

  std::unique_ptr<fe::graph::Graph> build(const Piece& piece, size_t most_bytes) const {
    auto graph = std::make_unique<fe::graph::Graph>();
    graph->set_io_data_type(fe::DataType_t::BFLOAT16)
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
    piece.backward ? add_backward(*graph, piece) : add_forward(*graph, piece);
    const std::string what = str(describe(piece), " within ", most_bytes, " bytes of workspace");
    check(graph->validate(), what.c_str());
    check(graph->build_operation_graph(handle), what.c_str());
    check(graph->create_execution_plans({fe::HeurMode_t::A}), what.c_str());
    graph->deselect_workspace_greater_than(static_cast<int64_t>(most_bytes));
    check(graph->check_support(), what.c_str());
    check(graph->build_plans(fe::BuildPlanPolicy_t::HEURISTICS_CHOICE), what.c_str());
    int64_t bytes = 0;
    check(graph->get_workspace_size(bytes), what.c_str());
    XCE_CHECK(static_cast<size_t>(bytes) <= most_bytes, str("a plan of cuDNN for the ", what), bytes);
    return graph;
  }

  void run(CUstream_st* stream, const Piece& piece, size_t most_bytes, std::unordered_map<int64_t, void*>& arrays,
           void* workspace) {
    std::unique_ptr<fe::graph::Graph>& plan = plans[piece];
    if (!plan) {
      cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
      XCE_CUDA_CHECK(cudaStreamIsCapturing(stream, &status));
      XCE_CHECK(status == cudaStreamCaptureStatusNone, "attention that ran eagerly before its capture",
                describe(piece));
      plan = build(piece, most_bytes);
    }
    check(cudnnSetStream(handle, stream), "cudnnSetStream");
    check(plan->execute(handle, arrays, workspace), describe(piece).c_str());
  }
};

SdpaPlans::SdpaPlans() = default;
SdpaPlans::~SdpaPlans() = default;
SdpaPlans::State& SdpaPlans::state() {
  if (!state_) state_ = std::make_unique<State>();
  return *state_;
}

bool sdpa_takes(const CudaExec& exec, const Sdpa& g) {
  return exec.cc_major == 9 && g.seq_len >= 2 && g.head_dim % 8 == 0 && g.head_dim <= 256 && g.qkv_stride % 8 == 0 &&
         (!g.backward || g.dqkv_stride % 8 == 0) && bytes_of(piece_of(g)) <= kMostPieceBytes;
}

size_t sdpa_workspace_bytes(const CudaExec&, const Sdpa& g) {
  return bytes_of(piece_of(g));
}

void sdpa(const CudaExec& exec, const Sdpa& g) {
  Piece piece = piece_of(g);
  const size_t most_bytes = bytes_of(piece);
  const int64_t group = g.heads / g.kv_heads, batch = piece.batch, kv_heads = piece.kv_heads;
  const auto at = [](const void* base, int64_t elements, int64_t size = 2) {
    return const_cast<char*>(static_cast<const char*>(base)) + elements * size;
  };
  for (int64_t b = 0; b < g.batch; b += batch)
    for (int64_t kv = 0; kv < g.kv_heads; kv += kv_heads) {
      piece.batch = std::min(batch, g.batch - b);
      piece.kv_heads = std::min(kv_heads, g.kv_heads - kv);
      const int64_t row = b * g.seq_len, q = kv * group * g.head_dim, k = kv * g.head_dim;
      const int64_t in = row * g.qkv_stride, out = row * g.dqkv_stride, o = row * piece.o_stride + q;
      std::unordered_map<int64_t, void*> arrays{
          {kQ, at(g.q, in + q)}, {kK, at(g.k, in + k)}, {kV, at(g.v, in + k)}, {kO, at(g.o, o)}};
      if (piece.wants_lse) arrays[kLse] = at(g.lse, (b * g.heads + kv * group) * g.seq_len, sizeof(float));
      if (g.backward)
        arrays.insert(
            {{kDO, at(g.d_o, o)}, {kDQ, at(g.dq, out + q)}, {kDK, at(g.dk, out + k)}, {kDV, at(g.dv, out + k)}});
      exec.sdpa_plans->state().run(exec.stream, piece, most_bytes, arrays, g.workspace);
    }
}

}  // namespace xce::cuda

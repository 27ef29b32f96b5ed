// Attention forward and backward against plain fp64 loops and finite differences, in every dtype and on every device.
#include "kernels/attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "tests/support/compare.h"
#include "tests/support/execs.h"

namespace xce {
namespace {

using test::Array;
using Values = std::vector<double>;

struct Sizes {
  int64_t batch, seq_len, heads, kv_heads, head_dim;
  bool fused;  // q, k and v in one array

  int64_t rows() const { return batch * seq_len; }
  int64_t width() const { return heads * head_dim; }
  int64_t kv_width() const { return kv_heads * head_dim; }
  double scale() const { return 1 / std::sqrt(static_cast<double>(head_dim)); }
};
constexpr Sizes kSizes[] = {{1, 1, 1, 1, 1, true},     {2, 7, 4, 1, 3, true},      {1, 31, 2, 2, 31, false},
                            {3, 64, 2, 1, 16, false},  {1, 65, 4, 4, 7, true},     {2, 127, 4, 2, 32, true},
                            {1, 129, 2, 2, 127, true}, {1, 200, 4, 1, 128, false}, {7, 9, 3, 3, 17, false},
                            {2, 70, 2, 1, 192, true},  {1, 33, 3, 1, 256, false},  {1, 67, 2, 2, 255, true}};
constexpr Sizes kLong = {1, 1025, 2, 1, 8, true};
constexpr DType kDTypes[] = {DType::kF32, DType::kBf16, DType::kF64};

// The plain computation in fp64 of whatever values lie in the arrays.
struct Reference {
  Values o, lse, dq, dk, dv;  // dense: (rows, heads, head_dim) and (rows, kv_heads, head_dim)

  Reference(const Sizes& s, const Values& q, const Values& k, const Values& v, const Values& d_o)
      : o(q.size()), lse(s.batch * s.heads * s.seq_len), dq(q.size()), dk(k.size()), dv(v.size()) {
    for (int64_t b = 0; b < s.batch; ++b)
      for (int64_t h = 0; h < s.heads; ++h)
        for (int64_t i = 0; i < s.seq_len; ++i) query(s, q, k, v, d_o, b, h, i);
  }

 private:
  void query(const Sizes& s, const Values& q, const Values& k, const Values& v, const Values& d_o, int64_t b, int64_t h,
             int64_t i) {
    int64_t n = s.head_dim, at_q = ((b * s.seq_len + i) * s.heads + h) * n;
    auto at_k = [&](int64_t j) { return ((b * s.seq_len + j) * s.kv_heads + h / (s.heads / s.kv_heads)) * n; };
    Values p(i + 1), dp(i + 1, 0.0);
    double max = -INFINITY, sum = 0, mean = 0;
    for (int64_t j = 0; j <= i; ++j) {
      for (int64_t d = 0; d < n; ++d) p[j] += s.scale() * q[at_q + d] * k[at_k(j) + d];
      max = std::max(max, p[j]);
    }
    for (double& x : p) sum += x = std::exp(x - max);
    lse[(b * s.heads + h) * s.seq_len + i] = max + std::log(sum);
    for (int64_t j = 0; j <= i; ++j) {
      p[j] /= sum;
      for (int64_t d = 0; d < n; ++d) {
        o[at_q + d] += p[j] * v[at_k(j) + d];
        dp[j] += d_o[at_q + d] * v[at_k(j) + d];
        dv[at_k(j) + d] += p[j] * d_o[at_q + d];
      }
      mean += p[j] * dp[j];
    }
    for (int64_t j = 0; j <= i; ++j)
      for (int64_t d = 0; d < n; ++d) {
        double ds = p[j] * (dp[j] - mean) * s.scale();
        dq[at_q + d] += ds * k[at_k(j) + d];
        dk[at_k(j) + d] += ds * q[at_q + d];
      }
  }
};

// The devices of all tests, and the GPU once more with its own kernels where it would choose others.
std::vector<Exec> attention_execs() {
  std::vector<Exec> execs = test::all_execs();
  for (Exec exec : test::gpu_execs()) {
    std::visit(
        [](auto& device) {
          if constexpr (requires { device.use_cudnn; }) device.use_cudnn = false;
        },
        exec);
    execs.push_back(exec);
  }
  return execs;
}

// Three row blocks q, k, v with one row stride: parts of one array, or three arrays with unused columns.
struct Qkv {
  Sizes s;
  std::vector<Array> arrays;
  int64_t stride;

  Qkv(const Sizes& s, DType dtype)
      : s(s), stride(s.fused ? s.width() + 2 * s.kv_width() : s.width() + (s.head_dim % 8 == 0 ? 8 : 3)) {
    for (int i = 0; i < (s.fused ? 1 : 3); ++i) arrays.emplace_back(dtype, s.rows() * stride);
  }
  int64_t width(int part) const { return part == 0 ? s.width() : s.kv_width(); }
  int64_t offset(int part) const { return !s.fused || part == 0 ? 0 : s.width() + (part - 1) * s.kv_width(); }
  Array& array(int part) { return arrays[s.fused ? 0 : part]; }
  void* data(int part) {
    return static_cast<char*>(array(part).data()) + offset(part) * static_cast<int64_t>(size_of(array(part).dtype()));
  }
  void fill(int part, const Array& dense) {
    for (int64_t r = 0; r < s.rows(); ++r)
      for (int64_t c = 0; c < width(part); ++c)
        array(part).set(r * stride + offset(part) + c, dense[r * width(part) + c]);
  }
  Array dense(int part) {
    Array out(array(part).dtype(), s.rows() * width(part));
    for (int64_t r = 0; r < s.rows(); ++r)
      for (int64_t c = 0; c < width(part); ++c)
        out.set(r * width(part) + c, array(part)[r * stride + offset(part) + c]);
    return out;
  }
  // Nothing outside the rows was written: guards, and the NaN between the rows of separate arrays.
  bool gaps_intact() {
    for (Array& a : arrays)
      if (!a.guards_intact()) return false;
    for (int part = 0; part < 3 && !s.fused; ++part)
      for (int64_t r = 0; r < s.rows(); ++r)
        for (int64_t c = width(part); c < stride; ++c)
          if (!std::isnan(array(part)[r * stride + c])) return false;
    return true;
  }
  bool same_bits(const Qkv& other) const {
    for (size_t i = 0; i < arrays.size(); ++i)
      if (!arrays[i].same_bits(other.arrays[i])) return false;
    return true;
  }
};

struct Case {
  Sizes s;
  DType dtype;
  Qkv qkv, dqkv;
  Array o, lse, d_o;

  Case(const Sizes& s, DType dtype, double stddev = 1.0)
      : s(s),
        dtype(dtype),
        qkv(s, dtype),
        dqkv(s, dtype),
        o(dtype, s.rows() * s.width()),
        lse(accum_dtype(dtype), s.batch * s.heads * s.seq_len),
        d_o(Array::normal(dtype, o.size(), 4)) {
    for (int part = 0; part < 3; ++part)
      qkv.fill(part, Array::normal(dtype, s.rows() * qkv.width(part), 1 + part, stddev));
  }
  AttentionForward forward() {
    return {qkv.data(0), qkv.data(1), qkv.data(2), qkv.stride, o.data(),   lse.data(), nullptr,  0,
            s.batch,     s.seq_len,   s.heads,     s.kv_heads, s.head_dim, dtype,      s.scale()};
  }
  AttentionBackward backward() {
    return {qkv.data(0),  qkv.data(1),  qkv.data(2),  qkv.stride,  o.data(), lse.data(), d_o.data(),
            dqkv.data(0), dqkv.data(1), dqkv.data(2), dqkv.stride, nullptr,  0,          s.batch,
            s.seq_len,    s.heads,      s.kv_heads,   s.head_dim,  dtype,    s.scale()};
  }
  Reference reference() {
    return Reference(s, qkv.dense(0).values(), qkv.dense(1).values(), qkv.dense(2).values(), d_o.values());
  }
};

template <class Args>
void run_with_workspace(const Exec& exec, Args args) {
  test::Vector<double> workspace(workspace_bytes(exec, args) / sizeof(double) + 1, std::nan(""));
  args.workspace = workspace.data();
  args.workspace_size_bytes = workspace_bytes(exec, args);
  run(exec, args);
}

// The scores' error enters the exponent and o's rounding enters backward, so the bar is a few roundings wide.
double tolerance(DType dtype) {
  return 3 * test::tolerance(dtype);
}

std::string name(const Case& c) {
  return str(name_of(c.dtype), " batch ", c.s.batch, " seq_len ", c.s.seq_len, " heads ", c.s.heads, "/", c.s.kv_heads,
             " head_dim ", c.s.head_dim);
}

void expect_right(const Exec& exec, Case& c) {
  SCOPED_TRACE(name(c));
  Reference want = c.reference();
  run_with_workspace(exec, c.forward());
  run_with_workspace(exec, c.backward());
  EXPECT_TRUE(test::close(c.o, want.o, tolerance(c.dtype)));
  EXPECT_TRUE(test::close(c.lse, want.lse, tolerance(accum_dtype(c.dtype))));
  EXPECT_TRUE(test::close(c.dqkv.dense(0), want.dq, tolerance(c.dtype))) << "dq";
  EXPECT_TRUE(test::close(c.dqkv.dense(1), want.dk, tolerance(c.dtype))) << "dk";
  EXPECT_TRUE(test::close(c.dqkv.dense(2), want.dv, tolerance(c.dtype))) << "dv";
  EXPECT_TRUE(c.dqkv.gaps_intact());
}

TEST(Attention, MatchesThePlainComputation) {
  for (const Exec& exec : attention_execs())
    for (DType dtype : kDTypes)
      for (const Sizes& s : kSizes) {
        Case c(s, dtype);
        expect_right(exec, c);
      }
}

TEST(Attention, MatchesThePlainComputationOverManyTiles) {
  for (const Exec& exec : attention_execs())
    for (DType dtype : kDTypes) {
      Case c(kLong, dtype);
      expect_right(exec, c);
    }
}

// Scores of hundreds: without the running maximum the exponentials overflow.
TEST(Attention, LargeScoresDoNotOverflow) {
  for (const Exec& exec : attention_execs()) {
    Case c({1, 127, 2, 2, 32, true}, DType::kF64, 12.0);
    expect_right(exec, c);
    Case single({1, 127, 2, 2, 32, true}, DType::kF32, 12.0);
    run_with_workspace(exec, single.forward());
    EXPECT_TRUE(test::close(single.o, single.reference().o, 1e-4));
  }
}

TEST(Attention, LseMayBeLeftOut) {
  for (const Exec& exec : attention_execs()) {
    Case with({2, 65, 2, 1, 16, true}, DType::kF32), without(with.s, with.dtype);
    run_with_workspace(exec, with.forward());
    AttentionForward args = without.forward();
    args.lse = nullptr;
    run_with_workspace(exec, args);
    EXPECT_TRUE(without.o.same_bits(with.o));
    EXPECT_TRUE(std::isnan(without.lse[0]));
  }
}

TEST(Attention, RepeatedCallsGiveTheSameBits) {
  for (const Exec& exec : attention_execs())
    for (DType dtype : kDTypes)
      for (Sizes s : {Sizes{1, 200, 4, 1, 31, true}, Sizes{3, 127, 4, 4, 32, true}}) {
        Case first(s, dtype), again(s, dtype);
        for (Case* c : {&first, &again}) {
          run_with_workspace(exec, c->forward());
          run_with_workspace(exec, c->backward());
        }
        EXPECT_TRUE(first.o.same_bits(again.o) && first.lse.same_bits(again.lse) && first.dqkv.same_bits(again.dqkv));
      }
}

// A query's output must not change when later tokens do.
TEST(Attention, LaterTokensDoNotMatter) {
  for (const Exec& exec : attention_execs()) {
    Case c({1, 100, 2, 1, 16, true}, DType::kF32), changed(c.s, c.dtype);
    int64_t from = 70;
    for (int64_t i = from * c.qkv.stride; i < c.qkv.arrays[0].size(); ++i) changed.qkv.arrays[0].set(i, 1e3 + i);
    run_with_workspace(exec, c.forward());
    run_with_workspace(exec, changed.forward());
    for (int64_t i = 0; i < from * c.s.width(); ++i) ASSERT_EQ(c.o[i], changed.o[i]) << i;
    EXPECT_NE(c.o[from * c.s.width()], changed.o[from * c.s.width()]);
  }
}

// d/dx sum(o * d_o) by central differences through forward itself, for some elements of q, k and v.
void expect_finite_differences(const Exec& exec) {
  Case c({1, 70, 4, 2, 5, true}, DType::kF64);
  run_with_workspace(exec, c.forward());
  run_with_workspace(exec, c.backward());
  Array& x = c.qkv.arrays[0];
  auto loss = [&] {
    run_with_workspace(exec, c.forward());
    double sum = 0;
    for (int64_t i = 0; i < c.o.size(); ++i) sum += c.o[i] * c.d_o[i];
    return sum;
  };
  for (int64_t i = 3; i < x.size(); i += 37) {
    double value = x[i], step = 1e-5;
    x.set(i, value + step);
    double above = loss();
    x.set(i, value - step);
    double below = loss();
    x.set(i, value);
    EXPECT_NEAR(c.dqkv.arrays[0][i], (above - below) / (2 * step), 1e-7) << i;
  }
}

TEST(Attention, GradientsMatchFiniteDifferences) {
  for (const Exec& exec : {Exec(test::cpu_exec(3)), attention_execs().back()}) expect_finite_differences(exec);
}

TEST(Attention, NothingToDoTouchesNothing) {
  for (Sizes s : {Sizes{0, 7, 2, 1, 4, true}, Sizes{2, 0, 2, 1, 4, true}}) {
    Case c(s, DType::kF32);
    AttentionForward forward = c.forward();
    forward.q = forward.k = forward.v = forward.o = nullptr;
    for (const Exec& exec : attention_execs()) EXPECT_NO_THROW(run(exec, forward));
    AttentionBackward backward = c.backward();
    backward.dq = backward.dk = backward.dv = nullptr;
    for (const Exec& exec : attention_execs()) EXPECT_NO_THROW(run(exec, backward));
  }
}

template <class Args, class Change>
std::string error_after(const Exec& exec, Args args, Change&& change) {
  try {
    test::Vector<char> workspace(workspace_bytes(exec, args));
    args.workspace = workspace.data();
    args.workspace_size_bytes = workspace.size();
    change(args);
    run(exec, args);
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

// Changes that both structs refuse, with the field that the message must name.
template <class Args>
std::vector<std::pair<void (*)(Args&), std::string>> bad_changes() {
  return {{[](Args& g) { g.batch = -1; }, ".batch >= 0, got -1"},
          {[](Args& g) { g.seq_len = -5; }, ".seq_len"},
          {[](Args& g) { g.heads = 3; }, ".heads"},
          {[](Args& g) { g.kv_heads = 0; }, ".kv_heads"},
          {[](Args& g) { g.head_dim = 0; }, ".head_dim"},
          {[](Args& g) { g.qkv_stride = 7; }, ".qkv_stride"},
          {[](Args& g) { g.scale = INFINITY; }, ".scale"},
          {[](Args& g) { g.q = nullptr; }, ".q"},
          {[](Args& g) { g.k = nullptr; }, ".k"},
          {[](Args& g) { g.v = nullptr; }, ".v"},
          {[](Args& g) { g.o = nullptr; }, ".o"},
          {[](Args& g) { g.workspace = nullptr; }, ".workspace"},
          {[](Args& g) { g.workspace_size_bytes -= 1; }, ".workspace_size_bytes"}};
}

template <class Args>
void expect_named(const Exec& exec, const Args& args, const std::string& name,
                  const std::vector<std::pair<void (*)(Args&), std::string>>& changes) {
  const bool needs_none = workspace_bytes(exec, args) == 0;
  for (auto& [change, field] : changes) {
    if (needs_none && field.starts_with(".workspace")) continue;
    const std::string error = error_after(exec, args, change);
    EXPECT_NE(error.find(name + field), std::string::npos) << error << "; expected " << name << field;
  }
}

TEST(Attention, BadArgumentsAreNamed) {
  Case c({1, 5, 4, 2, 2, true}, DType::kF32);
  auto changes = bad_changes<AttentionBackward>();
  using B = AttentionBackward;
  changes.insert(changes.end(), {{[](B& g) { g.lse = nullptr; }, ".lse"},
                                 {[](B& g) { g.d_o = nullptr; }, ".d_o"},
                                 {[](B& g) { g.dq = nullptr; }, ".dq"},
                                 {[](B& g) { g.dk = nullptr; }, ".dk"},
                                 {[](B& g) { g.dv = nullptr; }, ".dv"},
                                 {[](B& g) { g.dqkv_stride = 7; }, ".dqkv_stride"}});
  for (const Exec& exec : attention_execs()) {
    expect_named(exec, c.forward(), "AttentionForward", bad_changes<AttentionForward>());
    expect_named(exec, c.backward(), "AttentionBackward", changes);
  }
}

// What a GPU's shared memory cannot hold is refused by name.
TEST(Attention, AWideHeadIsRefusedOnAGpu) {
  for (const Exec& exec : test::gpu_execs()) {
    Case c({1, 5, 1, 1, 257, true}, DType::kF32);
    const std::string error = error_after(exec, c.forward(), [](AttentionForward&) {});
    EXPECT_NE(error.find("AttentionForward.head_dim <= 256 on CUDA, got 257"), std::string::npos) << error;
  }
}

}  // namespace
}  // namespace xce

// Cross-entropy over given logits on the CPU: each thread takes rows; a row is read in blocks that fit L1, converted to
// accum_dtype, and its (max, sum) merged block by block: one pass for the loss, one for the gradient.
#include "kernels/cross_entropy/cross_entropy.h"

#include <algorithm>
#include <array>

#include "kernels/cpu/parallel.h"
#include "kernels/cross_entropy/loss_rows.h"
#include "kernels/cross_entropy/tile_math.h"

namespace xce {
namespace {

constexpr int64_t kBlock = 1024;
constexpr int kMaxThreads = 512;

template <class T>
class Rows {
 public:
  using A = Accum<T>;

  explicit Rows(const CrossEntropyInputs& in)
      : in_(in),
        logits_(static_cast<const T*>(in.logits)),
        ld_(in.ld ? in.ld : in.vocab),
        vocab_global_(in.vocab_global < 0 ? in.shard_offset + in.vocab : in.vocab_global),
        active_(std::clamp<int64_t>(vocab_global_ - in.shard_offset, 0, in.vocab)) {}

  int64_t vocab_global() const { return vocab_global_; }
  int64_t label(int64_t i) const { return loss::label_of(in_.targets, i); }
  bool valid(int64_t i) const { return loss::is_valid(in_.targets, label(i), vocab_global_); }

  // z_y where this part of the vocabulary holds the label, else 0.
  double target(int64_t i) const {
    int64_t y = label(i) - in_.shard_offset;
    return y >= 0 && y < active_ ? static_cast<double>(cpu::load(logits_ + i * ld_, y)) : 0.0;
  }
  loss::MaxSum statistics(int64_t i) const {
    loss::MaxSum all;
    A z[kBlock];
    for (int64_t at = 0; at < active_; at += kBlock) {
      int64_t n = std::min(kBlock, active_ - at);
      read(i, at, n, z);
      loss::TileStats<A> block = loss::exponentials(z, n);
      all.merge(block.max, block.sum);
    }
    return all;
  }
  // g is upstream / D. Blocks are read before they are written: out may be the logits.
  void gradient(int64_t i, A offset, A logsum, double g, double z_loss, T* out) const {
    double lse = static_cast<double>(offset) + static_cast<double>(logsum);
    double extra = z_loss != 0 ? g * 2 * z_loss * lse : 0;
    A k = static_cast<A>(g + extra);
    int64_t y = label(i) - in_.shard_offset;
    A z[kBlock];
    for (int64_t at = 0; at < active_; at += kBlock) {
      int64_t n = std::min(kBlock, active_ - at);
      read(i, at, n, z);
      bool has_target = y >= at && y < at + n;
      A p = has_target ? std::exp((z[y - at] - offset) - logsum) : A(0);
      loss::scaled_softmax(z, n, offset, logsum, k);
      if (has_target) z[y - at] = loss::target_gradient(p, g, extra);
#pragma omp simd
      for (int64_t v = 0; v < n; ++v) cpu::store(out + at, v, z[v]);
    }
    std::fill(out + active_, out + in_.vocab, T(0.0f));
  }

 private:
  void read(int64_t i, int64_t at, int64_t n, A* z) const {
    const T* from = logits_ + i * ld_ + at;
#pragma omp simd
    for (int64_t v = 0; v < n; ++v) z[v] = cpu::load(from, v);
  }

  const CrossEntropyInputs& in_;
  const T* logits_;
  int64_t ld_, vocab_global_, active_;
};

// Per-thread loss sums, joined in thread order.
struct PartialSums {
  std::array<double, kMaxThreads> loss{}, z_loss{};
  void add_to(loss::Totals& totals, int threads) const {
    for (int t = 0; t < threads; ++t) totals.loss += loss[t], totals.z_loss += z_loss[t];
  }
};

void check(const CpuExec& exec, const CrossEntropyInputs& in, const LossOptions& options) {
  loss::check(options);
  XCE_CHECK(in.rows >= 0, "cross-entropy rows >= 0", in.rows);
  XCE_CHECK(in.vocab >= 1, "cross-entropy vocab >= 1", in.vocab);
  XCE_CHECK(in.ld == 0 || in.ld >= in.vocab, "ld 0 or >= vocab", in.ld);
  XCE_CHECK(in.shard_offset >= 0, "shard_offset >= 0", in.shard_offset);
  XCE_CHECK(in.rows == 0 || (in.logits && in.targets.index), "logits and targets", "null");
  XCE_CHECK(exec.pool->size() <= kMaxThreads, str("at most ", kMaxThreads, " threads"), exec.pool->size());
}
void check_whole_vocab(const CrossEntropyInputs& in) {
  XCE_CHECK(in.shard_offset == 0 && in.vocab_global <= in.vocab, "the whole vocabulary, or a shard's statistics alone",
            str("a shard of ", in.vocab_global, " labels"));
}
int64_t dlogits_ld(const CrossEntropyInputs& in, const void* dlogits, int64_t ld) {
  XCE_CHECK(in.rows == 0 || dlogits, "dlogits", "null");
  XCE_CHECK(ld == 0 || ld >= in.vocab, "ld_dlogits 0 or >= vocab", ld);
  XCE_CHECK(dlogits != in.logits || (ld ? ld : in.vocab) == (in.ld ? in.ld : in.vocab),
            "equal leading dimensions of logits and of the dlogits that overwrite them", ld);
  return ld ? ld : in.vocab;
}
template <class T>
void forward(const CpuExec& exec, const CrossEntropyForward& args) {
  using A = Accum<T>;
  Rows<T> rows(args.in);
  loss::Totals totals = loss::count_rows(args.in.targets, args.in.rows, rows.vocab_global());
  PartialSums sums;
  parallel_for(exec, args.in.rows, 1, [&](int64_t begin, int64_t end, int thread) {
    for (int64_t i = begin; i < end; ++i) {
      bool valid = rows.valid(i);
      loss::MaxSum set = valid ? rows.statistics(i) : loss::MaxSum{};
      double target = valid ? rows.target(i) : 0.0;
      if (args.statistics) {
        A* to = static_cast<A*>(args.statistics) + i;
        to[0] = static_cast<A>(set.max), to[args.in.rows] = static_cast<A>(set.sum);
        to[2 * args.in.rows] = static_cast<A>(target);
      }
      loss::RowLoss row = loss::row_loss(set.max, set.sum, target, args.options.z_loss);
      if (valid) sums.loss[thread] += row.loss, sums.z_loss[thread] += row.z_loss;
      loss::store_row<A>(args.out, i, valid ? &row : nullptr);
    }
  });
  sums.add_to(totals, exec.pool->size());
  loss::store_totals<A>(args.out, args.options, totals);
}

template <class T>
void backward(const CpuExec& exec, const CrossEntropyBackward& args, int64_t ld) {
  using A = Accum<T>;
  Rows<T> rows(args.in);
  loss::Totals totals = loss::count_rows(args.in.targets, args.in.rows, rows.vocab_global());
  double d = loss::denominator(args.options, totals.n_valid);
  const A *offset = static_cast<const A*>(args.offset), *logsum = static_cast<const A*>(args.logsum);
  parallel_for(exec, args.in.rows, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      T* out = static_cast<T*>(args.dlogits) + i * ld;
      if (d == 0 || !rows.valid(i)) {
        std::fill_n(out, args.in.vocab, T(0.0f));
        continue;
      }
      double g = loss::row_upstream<A>(args.upstream, args.options.reduction, d, i);
      rows.gradient(i, offset[i], logsum[i], g, args.options.z_loss, out);
    }
  });
}

template <class T>
void forward_backward(const CpuExec& exec, const CrossEntropyForwardBackward& args, int64_t ld) {
  using A = Accum<T>;
  Rows<T> rows(args.in);
  loss::Totals totals = loss::count_rows(args.in.targets, args.in.rows, rows.vocab_global());
  double d = loss::denominator(args.options, totals.n_valid);
  PartialSums sums;
  parallel_for(exec, args.in.rows, 1, [&](int64_t begin, int64_t end, int thread) {
    for (int64_t i = begin; i < end; ++i) {
      T* out = static_cast<T*>(args.dlogits) + i * ld;
      if (!rows.valid(i)) {
        std::fill_n(out, args.in.vocab, T(0.0f));
        loss::store_row<A>(args.out, i, nullptr);
        continue;
      }
      loss::MaxSum set = rows.statistics(i);
      loss::RowLoss row = loss::row_loss(set.max, set.sum, rows.target(i), args.options.z_loss);
      sums.loss[thread] += row.loss, sums.z_loss[thread] += row.z_loss;
      loss::store_row<A>(args.out, i, &row);
      if (d == 0) {
        std::fill_n(out, args.in.vocab, T(0.0f));
        continue;
      }
      double g = loss::row_upstream<A>(args.upstream, args.options.reduction, d, i);
      rows.gradient(i, static_cast<A>(row.offset), static_cast<A>(row.logsum), g, args.options.z_loss, out);
    }
  });
  sums.add_to(totals, exec.pool->size());
  loss::store_totals<A>(args.out, args.options, totals);
}

}  // namespace

// The sums lie on the stack.
size_t workspace_bytes(const CpuExec&, const CrossEntropyForward&) {
  return 0;
}
size_t workspace_bytes(const CpuExec&, const CrossEntropyBackward&) {
  return 0;
}
size_t workspace_bytes(const CpuExec&, const CrossEntropyForwardBackward&) {
  return 0;
}

void launch(const CpuExec& exec, const CrossEntropyForward& args) {
  check(exec, args.in, args.options);
  if (loss::any(args.out)) check_whole_vocab(args.in);
  visit_dtype(args.in.dtype, [&]<class T>(std::type_identity<T>) { forward<T>(exec, args); });
}

void launch(const CpuExec& exec, const CrossEntropyBackward& args) {
  check(exec, args.in, args.options);
  XCE_CHECK(args.in.rows == 0 || (args.offset && args.logsum), "the forward's residual", "null");
  int64_t ld = dlogits_ld(args.in, args.dlogits, args.ld_dlogits);
  visit_dtype(args.in.dtype, [&]<class T>(std::type_identity<T>) { backward<T>(exec, args, ld); });
}

void launch(const CpuExec& exec, const CrossEntropyForwardBackward& args) {
  check(exec, args.in, args.options);
  check_whole_vocab(args.in);
  int64_t ld = dlogits_ld(args.in, args.dlogits, args.ld_dlogits);
  visit_dtype(args.in.dtype, [&]<class T>(std::type_identity<T>) { forward_backward<T>(exec, args, ld); });
}

}  // namespace xce

// Cross-entropy over given logits on the CPU: each thread takes rows; a row is read in blocks that fit L1, converted to
// accum_dtype, and its statistics merged block by block: one pass for the loss, one for the gradient.
#include "kernels/cross_entropy/cross_entropy.h"

#include <algorithm>
#include <array>

#include "kernels/cpu/parallel.h"
#include "kernels/cross_entropy/cross_entropy_check.h"
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

  Rows(const CrossEntropyInputs& in, const LossOptions& options, loss::Extras extras)
      : in_(in),
        options_(options),
        extras_(extras),
        logits_(static_cast<const T*>(in.logits)),
        ld_(in.ld ? in.ld : in.vocab),
        vocab_global_(in.vocab_global < 0 ? in.shard_offset + in.vocab : in.vocab_global),
        active_(std::clamp<int64_t>(vocab_global_ - in.shard_offset, 0, in.vocab)),
        map_(options),
        mass_(in.targets, options, in.vocab, vocab_global_, in.shard_offset),
        totals_(loss::count_rows<A>(in.targets, options, in.rows, vocab_global_)) {}

  const loss::Totals& totals() const { return totals_; }
  double denominator() const { return loss::denominator(options_, totals_); }
  loss::RowTarget target(int64_t i) const { return loss::row_target<A>(in_.targets, options_, vocab_global_, i); }
  loss::Mass mass(const loss::RowTarget& target) const {
    return loss::mass_of<A>(options_, totals_, target.label, vocab_global_);
  }
  // S of a row with probabilities.
  double sum_of_mass(int64_t i) const { return mass_.sum(i, active_); }

  loss::RowStatistics statistics(int64_t i, const loss::RowTarget& target) const {
    loss::RowStatistics all;
    A z[kBlock], mass[kBlock];
    const int64_t y = target.label - in_.shard_offset;
    for (int64_t at = 0; at < active_; at += kBlock) {
      const int64_t n = std::min(kBlock, active_ - at);
      read(i, at, n, z);
      if (target.label != loss::kNoLabel && y >= at && y < at + n) all.target = static_cast<double>(z[y - at]);
      if (!extras_.any()) {
        all.merge(loss::row_statistics<A>(loss::exponentials(z, n), nullptr, 0));
        continue;
      }
      loss::TileExtras<A> extras;
      if (extras_.mass) mass_.read(i, at, n, mass);
      const auto block = loss::run_statistics(extras_, z, extras_.mass ? mass : nullptr, n, false, &extras);
      all.merge(loss::row_statistics(block, &extras, in_.shard_offset + at));
    }
    return all;
  }
  // Blocks are read before they are written: out may be the logits.
  void gradient(int64_t i, const loss::RowTarget& target, const loss::RowGradient<A>& r, T* out) const {
    const int64_t y = target.label == loss::kNoLabel ? -1 : target.label - in_.shard_offset;
    A z[kBlock], mass[kBlock];
    for (int64_t at = 0; at < active_; at += kBlock) {
      const int64_t n = std::min(kBlock, active_ - at);
      read(i, at, n, z);
      if (extras_.mass) mass_.read(i, at, n, mass);
      loss::gradient_run<A>(z, extras_.mass ? mass : nullptr, n, y - at, r, nullptr, map_.cap);
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
    map_.apply(z, n);
  }

  const CrossEntropyInputs& in_;
  const LossOptions& options_;
  loss::Extras extras_;
  const T* logits_;
  int64_t ld_, vocab_global_, active_;
  loss::LogitMap<A> map_;
  loss::MassReader<A> mass_;
  loss::Totals totals_;
};

// Per-thread sums, joined in thread order.
struct PartialSums {
  std::array<loss::Totals, kMaxThreads> of_thread{};
  loss::Totals joined(loss::Totals totals, int threads) const {
    for (int t = 0; t < threads; ++t) {
      totals.loss += of_thread[t].loss, totals.z_loss += of_thread[t].z_loss;
      totals.n_correct += of_thread[t].n_correct;
    }
    return totals;
  }
};

void check(const CpuExec& exec, const CrossEntropyInputs& in, const LossOptions& options, const LossOutputs& out) {
  loss::check(in, options, out);
  XCE_CHECK(exec.pool->size() <= kMaxThreads, str("at most ", kMaxThreads, " threads"), exec.pool->size());
}

template <class T>
void forward(const CpuExec& exec, const CrossEntropyForward& args) {
  using A = Accum<T>;
  loss::Extras extras = loss::extras_of(args.in.targets, args.options, args.out);
  if (args.statistics) extras.entropy = extras.argmax = true;
  const Rows<T> rows(args.in, args.options, extras);
  PartialSums sums;
  parallel_for(exec, args.in.rows, 1, [&](int64_t begin, int64_t end, int thread) {
    for (int64_t i = begin; i < end; ++i) {
      const loss::RowTarget target = rows.target(i);
      const loss::RowStatistics s = target.valid ? rows.statistics(i, target) : loss::RowStatistics{};
      if (args.statistics) s.store(args.statistics, args.in.rows, i);
      if (!target.valid) {
        loss::store_row<A>(args.options, args.out, i, target, nullptr);
        continue;
      }
      const loss::RowLoss row = loss::row_loss(s, rows.mass(target), target.token_weight, args.options.z_loss);
      loss::add_loss(sums.of_thread[thread], row, target);
      loss::store_row<A>(args.options, args.out, i, target, &row);
    }
  });
  loss::store_totals<A>(args.out, args.options, sums.joined(rows.totals(), exec.pool->size()));
}

template <class T>
void backward(const CpuExec& exec, const CrossEntropyBackward& args, int64_t ld) {
  using A = Accum<T>;
  const Rows<T> rows(args.in, args.options, loss::extras_of(args.in.targets, args.options, {}));
  const double d = rows.denominator();
  const A *offset = static_cast<const A*>(args.offset), *logsum = static_cast<const A*>(args.logsum);
  parallel_for(exec, args.in.rows, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      T* out = static_cast<T*>(args.dlogits) + i * ld;
      const loss::RowTarget target = rows.target(i);
      if (d == 0 || !target.valid) {
        std::fill_n(out, args.in.vocab, T(0.0f));
        continue;
      }
      const loss::Mass mass = rows.mass(target);
      loss::RowGradient<A> r;
      r.g = loss::row_factor<A>(args.upstream, args.options, target.token_weight, d, i);
      r.set_residual(args.options, mass, mass.by_row ? rows.sum_of_mass(i) : 0, offset[i], logsum[i]);
      rows.gradient(i, target, r, out);
    }
  });
}

template <class T>
void forward_backward(const CpuExec& exec, const CrossEntropyForwardBackward& args, int64_t ld) {
  using A = Accum<T>;
  const Rows<T> rows(args.in, args.options, loss::extras_of(args.in.targets, args.options, args.out));
  const double d = rows.denominator();
  PartialSums sums;
  parallel_for(exec, args.in.rows, 1, [&](int64_t begin, int64_t end, int thread) {
    for (int64_t i = begin; i < end; ++i) {
      T* out = static_cast<T*>(args.dlogits) + i * ld;
      const loss::RowTarget target = rows.target(i);
      if (!target.valid) {
        std::fill_n(out, args.in.vocab, T(0.0f));
        loss::store_row<A>(args.options, args.out, i, target, nullptr);
        continue;
      }
      const loss::RowStatistics s = rows.statistics(i, target);
      const loss::Mass mass = rows.mass(target);
      const loss::RowLoss row = loss::row_loss(s, mass, target.token_weight, args.options.z_loss);
      loss::add_loss(sums.of_thread[thread], row, target);
      loss::store_row<A>(args.options, args.out, i, target, &row);
      if (d == 0) {
        std::fill_n(out, args.in.vocab, T(0.0f));
        continue;
      }
      loss::RowGradient<A> r;
      r.g = loss::row_factor<A>(args.upstream, args.options, target.token_weight, d, i);
      r.set_residual(args.options, mass, s.mass, static_cast<A>(row.offset), static_cast<A>(row.logsum));
      rows.gradient(i, target, r, out);
    }
  });
  loss::store_totals<A>(args.out, args.options, sums.joined(rows.totals(), exec.pool->size()));
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
  check(exec, args.in, args.options, args.out);
  if (loss::any(args.out)) loss::check_whole_vocab(args.in);
  visit_loss_dtype(args.in.dtype, [&]<class T>(std::type_identity<T>) { forward<T>(exec, args); });
}

void launch(const CpuExec& exec, const CrossEntropyBackward& args) {
  check(exec, args.in, args.options, {});
  loss::check_backward(args.in.targets, loss::is_whole_vocab(args.in), args.offset, args.logsum, args.in.rows);
  int64_t ld = loss::dlogits_ld(args.in, args.dlogits, args.ld_dlogits);
  visit_loss_dtype(args.in.dtype, [&]<class T>(std::type_identity<T>) { backward<T>(exec, args, ld); });
}

void launch(const CpuExec& exec, const CrossEntropyForwardBackward& args) {
  check(exec, args.in, args.options, args.out);
  loss::check_whole_vocab(args.in);
  int64_t ld = loss::dlogits_ld(args.in, args.dlogits, args.ld_dlogits);
  visit_loss_dtype(args.in.dtype, [&]<class T>(std::type_identity<T>) { forward_backward<T>(exec, args, ld); });
}

}  // namespace xce

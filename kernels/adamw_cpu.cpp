// One pass over the arena, a block of equal weight decay at a time.
#include "kernels/adamw.h"

#include <algorithm>

#include "kernels/cpu/parallel.h"
#include "kernels/cpu/vec.h"

namespace xce {
namespace {

// n elements from `at`, which share `decay`.
template <class T, bool kCompute>
void update(const AdamW& args, const AdamWScalars<Accum<T>>& s, int64_t at, int64_t n) {
  using A = Accum<T>;
  A* master = static_cast<A*>(args.master) + at;
  A *m = static_cast<A*>(args.m) + at, *v = static_cast<A*>(args.v) + at;
  const A* grad = static_cast<const A*>(args.grad) + at;
  T* compute = kCompute ? static_cast<T*>(args.compute) + at : nullptr;
  const A shrink = s.lr * static_cast<A>(args.decay[at / AdamW::kBlock]);
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    A w = master[i], m_new = m[i], v_new = v[i];
    adamw_update(s, shrink, grad[i], w, m_new, v_new);
    m[i] = m_new;
    v[i] = v_new;
    master[i] = w;
    if constexpr (kCompute) cpu::store(compute, i, w);
  }
}

}  // namespace

void check_args(const AdamW& args) {
  XCE_CHECK(args.state, "AdamW.state not null", "null");
  XCE_CHECK(args.n >= 0, "AdamW.n >= 0", args.n);
  XCE_CHECK(args.n == 0 || (args.master && args.m && args.v && args.grad && args.decay),
            "AdamW.master, .m, .v, .grad and .decay not null", "null");
  XCE_CHECK(args.beta1 >= 0 && args.beta1 < 1, "AdamW.beta1 in [0, 1)", args.beta1);
  XCE_CHECK(args.beta2 >= 0 && args.beta2 < 1, "AdamW.beta2 in [0, 1)", args.beta2);
  XCE_CHECK(args.eps >= 0, "AdamW.eps >= 0", args.eps);
}

void launch(const CpuExec& exec, const AdamW& args) {
  check_args(args);
  if (!args.state->apply) return;
  XCE_CHECK(args.state->updates >= 1, "AdamW.state->updates >= 1 (this update counted)", args.state->updates);
  const int64_t blocks = (args.n + AdamW::kBlock - 1) / AdamW::kBlock;
  visit_dtype(args.dtype, [&]<class T>(std::type_identity<T>) {
    const auto s = adamw_scalars<Accum<T>>(args);
    parallel_for(exec, blocks, cpu::row_grain(AdamW::kBlock), [&](int64_t begin, int64_t end, int) {
      for (int64_t b = begin; b < end; ++b) {
        int64_t at = b * AdamW::kBlock, n = std::min(AdamW::kBlock, args.n - at);
        args.compute ? update<T, true>(args, s, at, n) : update<T, false>(args, s, at, n);
      }
    });
  });
}

}  // namespace xce

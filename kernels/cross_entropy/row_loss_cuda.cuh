// A row's loss from its statistics, by one thread, to everything that asks for it.
#pragma once

#include "kernels/cross_entropy/rows_cuda.cuh"

namespace xce::loss {

// A null `row`: an ignored one.
template <class In, class Out>
__device__ inline void store_loss(const DeviceRows<In, Out>& r, int64_t i, const RowTarget& target,
                                  const RowLoss* row) {
  store_row<Accum<Out>>(r.options, r.out, r.first_row + i, target, row);
  if (r.row_loss) r.row_loss[i] = row ? row->loss : 0, r.row_z_loss[i] = row ? row->z_loss : 0;
  if (row && r.out.n_correct && row->argmax == target.label)
    atomicAdd(reinterpret_cast<unsigned long long*>(&r.totals->n_correct), 1ull);
}
template <bool kGeneral, class In, class Out>
__device__ inline RowLoss loss_of(const DeviceRows<In, Out>& r, const RowTarget& target, const RowStatistics& s) {
  using A = Accum<Out>;
  Mass mass{};
  if constexpr (kGeneral)
    mass = mass_of<A>(r.options, *r.totals, target.label, r.vocab_global);
  else
    mass.at_label = mass.total = class_weight<A>(r.options, target.label);
  return row_loss(s, mass, target.token_weight, r.options.z_loss);
}
// z_y where these columns hold the label, else 0.
template <class In, class Out>
__device__ inline double target_logit(const DeviceRows<In, Out>& r, int64_t i, const RowTarget& target) {
  const int64_t y = target.label - r.first_col;
  if (target.label == kNoLabel || y < 0 || y >= r.cols) return 0;
  return static_cast<double>(z_at(r, LogitMap<Accum<Out>>(r.options), r.logits + i * r.ld, static_cast<int>(y)).z);
}

}  // namespace xce::loss

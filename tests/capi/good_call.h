// A call of the C API that works, with every result asked for: tests make it wrong and look whether it wrote anything.
#pragma once

#include <cmath>
#include <cstddef>

#include "tests/capi/c_args.h"
#include "tests/support/array.h"

namespace xce::test {

inline constexpr int64_t kRows = 6, kHidden = 8, kVocab = 20;
inline constexpr size_t kBudget = size_t{1} << 20;

// A call that works; every result holds NaN or -7 until it runs.
struct Good {
  Array x = Array::normal(DType::kF32, kRows*kHidden, 1), weight = Array::normal(DType::kF32, kVocab*kHidden, 2);
  Array logits = Array::normal(DType::kF32, kRows* kVocab, 3);
  Array dx{DType::kF32, kRows*kHidden}, dweight{DType::kF32, kVocab*kHidden}, dbias{DType::kF32, kVocab};
  Array dlogits{DType::kF32, kRows*kVocab}, loss{DType::kF32, 1}, row_loss{DType::kF32, kRows};
  Array offset{DType::kF32, kRows}, logsum{DType::kF32, kRows}, statistics{DType::kF64, kLossStatistics*kRows};
  Array bias = Array::normal(DType::kF32, kVocab, 4), row_max{DType::kF32, kRows}, row_entropy{DType::kF32, kRows};
  Array probabilities = Array::filled(DType::kF32, kRows* kVocab, 0.05);
  Scalar<int64_t> n_valid{-7}, out_of_range{-7}, first_out_of_range{-7}, n_correct{-7};
  Vector<int64_t> argmax = Vector<int64_t>(kRows, -7);
  Scalar<double> weight_sum{-7}, loss_total{-7};
  Vector<int32_t> labels = Vector<int32_t>(kRows, 3);
  Vector<std::max_align_t> workspace = Vector<std::max_align_t>(kBudget / sizeof(std::max_align_t));

  xce_loss shared() {
    xce_loss to{};
    to.rows = kRows, to.vocab = kVocab, to.dtype = XCE_FLOAT32, to.label_dtype = XCE_INT32;
    to.labels = labels.data();
    to.loss = loss.data(), to.loss_total = loss_total.data(), to.row_loss = row_loss.data();
    to.offset = offset.data(), to.logsum = logsum.data();
    to.n_valid = n_valid.data(), to.out_of_range = out_of_range.data();
    to.weight_sum = weight_sum.data(), to.first_out_of_range = first_out_of_range.data();
    to.row_max = row_max.data(), to.row_entropy = row_entropy.data();
    to.argmax = argmax.data(), to.n_correct = n_correct.data();
    return to;
  }
  xce_linear_cross_entropy_args linear() {
    xce_linear_cross_entropy_args args{};
    args.struct_size = sizeof(args);
    args.loss = shared();
    args.hidden = kHidden;
    args.x = x.data(), args.weight = weight.data(), args.bias = bias.data();
    args.dx = dx.data(), args.dweight = dweight.data(), args.dbias = dbias.data();
    args.workspace = workspace.data(), args.workspace_size_bytes = kBudget, args.workspace_budget_bytes = kBudget;
    return args;
  }
  xce_cross_entropy_args plain() {
    xce_cross_entropy_args args{};
    args.struct_size = sizeof(args);
    args.loss = shared();
    args.logits = logits.data(), args.dlogits = dlogits.data();
    args.workspace = workspace.data(), args.workspace_size_bytes = kBudget;
    return args;
  }
  xce_loss_count_args count() {
    xce_loss_count_args args{};
    args.struct_size = sizeof(args);
    args.loss = shared();
    return args;
  }
  xce_loss_statistics_args sets() {
    xce_loss_statistics_args args{};
    args.struct_size = sizeof(args);
    args.loss = shared();
    args.sets = x.data(), args.count = 2, args.rows = kRows, args.statistics = statistics.data();
    return args;
  }
  bool untouched() const {
    for (const Array* a :
         {&dx, &dweight, &dbias, &dlogits, &loss, &row_loss, &offset, &logsum, &statistics, &row_max, &row_entropy}) {
      if (!a->guards_intact()) return false;
      for (int64_t i = 0; i < a->size(); ++i)
        if (!std::isnan((*a)[i])) return false;
    }
    for (int64_t label : argmax)
      if (label != -7) return false;
    return n_valid == -7 && out_of_range == -7 && first_out_of_range == -7 && n_correct == -7 && weight_sum == -7.0 &&
           loss_total == -7.0;
  }
};

// Probability targets, with nothing that only labels can have.
inline void by_probabilities(xce_loss& loss, const void* probabilities) {
  loss.labels = nullptr, loss.n_correct = nullptr;
  loss.label_dtype = 0;
  loss.probabilities = probabilities;
}

}  // namespace xce::test

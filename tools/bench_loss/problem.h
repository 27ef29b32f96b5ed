// One shape's arrays on a device, the calls that use them, and their results' errors against fp64 on sampled rows and
// labels.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "kernels/cross_entropy/cross_entropy.h"
#include "kernels/linear_cross_entropy/linear_cross_entropy.h"
#include "tools/bench_loss/device.h"

namespace xce::bench {

struct LossErrors {
  double row_loss = 0, entropy = 0, dx = 0, dweight = 0, dlogits = 0;  // relative; gradients in the L2 norm
  nlohmann::json json() const {
    return {{"error_loss", row_loss},
            {"error_entropy", entropy},
            {"error_dx", dx},
            {"error_dweight", dweight},
            {"error_dlogits", dlogits}};
  }
};

class LossProblem {
 public:
  LossProblem(LossDevice& device, const LossShape& shape, const LossBenchOptions& options);

  LinearCrossEntropyForwardBackward linear(const Features& f, size_t budget_bytes);
  CrossEntropyForwardBackward plain(const Features& f);
  ProductArrays products() const {
    return {x_.data(), weight_.data(), dx_.data(), dweight_.data(), narrow_ ? dtype_ : DType::kF32};
  }
  size_t budget_of_rows(int64_t rows) const;  // chunks of so many rows over the whole vocabulary
  template <class Args>
  void give_workspace(const Exec& exec, Args& args);

  // Of the results in the arrays. Error(kRuntime) where they are wrong, naming which.
  LossErrors verify(const Features& f);

 private:
  struct Row {
    double loss, entropy, lse;
    std::vector<double> dlogits;
  };
  LossOptions options(const Features& f) const;
  LossOutputs outputs(const Features& f) const;
  LossTargets targets(const Features& f) const;
  double mass(const Features& f, int64_t i, int64_t v) const;
  double factor(const Features& f, int64_t i) const;  // token weight over D
  template <class F>
  void each_block(F&& f) const;
  std::vector<std::vector<double>> logits_of(const Features& f, const std::vector<int64_t>& rows) const;
  double capped(const Features& f, double y) const;
  Row reference(const Features& f, int64_t i, const std::vector<double>& z) const;
  void check_linear(const Features& f, const std::vector<int64_t>& rows, const std::vector<Row>& want, LossErrors& e);
  double token(const Features& f, int64_t i) const { return f.token_weights ? host_tokens_[i] : 1; }
  double weight_of(const Features& f, int64_t v) const { return f.class_weights ? host_classes_[v] : 1; }

  LossDevice& device_;
  LossShape s_;
  DType dtype_;
  bool is_plain_, tf32_, narrow_;
  std::vector<int32_t> host_labels_;
  std::vector<float> host_classes_, host_tokens_, host_probabilities_;  // one row of probabilities, the same for all
  Array x_, weight_, bias_, logits_, dx_, dweight_, dbias_, dlogits_;
  Array loss_, row_loss_, offset_, logsum_, entropy_;
  void *labels_, *classes_, *tokens_, *probabilities_ = nullptr, *argmax_, *n_correct_;
};

template <class Args>
void LossProblem::give_workspace(const Exec& exec, Args& args) {
  const size_t bytes = workspace_bytes(exec, args);
  void* data = bytes ? device_.memory().allocate(bytes) : nullptr;
  if constexpr (requires { args.workspace.budget_bytes; })
    args.workspace.data = data, args.workspace.size_bytes = bytes;
  else
    args.workspace = data, args.workspace_size_bytes = bytes;
}

}  // namespace xce::bench

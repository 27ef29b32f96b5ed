// An engine of its own around the loss library: it learns which token follows which, by embedding, linear head and
// plain gradient descent. It shows what a trainer needs: one token mean over micro-batches with different numbers of
// tokens (count first, then its sum as the denominator), gradients added to fp32 main gradients, one workspace for all
// calls.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <vector>
#include <xce/xce.hpp>

namespace {

constexpr int64_t kVocab = 512, kHidden = 32, kRows = 256, kMicroBatches = 2;
constexpr int32_t kPadding = -100;

int32_t next_of(int64_t token) {
  return static_cast<int32_t>((token * 5 + 3) % kVocab);
}

struct MicroBatch {
  std::vector<int32_t> tokens, labels;
};
// The second holds half as many tokens; the rest is padding.
MicroBatch draw(uint64_t& state, int index) {
  MicroBatch batch;
  for (int64_t i = 0; i < kRows; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    batch.tokens.push_back(static_cast<int32_t>((state >> 33) % kVocab));
    batch.labels.push_back(index == 0 || i < kRows / 2 ? next_of(batch.tokens.back()) : kPadding);
  }
  return batch;
}

class Engine {
 public:
  Engine() : context_(xce::api::Context::cpu()), embedding_(kVocab * kHidden), head_(kVocab * kHidden) {
    for (size_t i = 0; i < head_.size(); ++i) {
      embedding_[i] = std::sin(1.7f * static_cast<float>(i * i % 9973));
      head_[i] = 0.1f * std::cos(2.3f * static_cast<float>(i * i % 9901));
    }
    args_.loss.rows = kRows, args_.loss.vocab = kVocab, args_.hidden = kHidden;
    args_.loss.dtype = XCE_FLOAT32, args_.loss.label_dtype = XCE_INT32;
    args_.loss.loss_total = &loss_, args_.loss.denominator = &tokens_;
    args_.x = x_.data(), args_.weight = head_.data();
    args_.dx = dx_.data(), args_.dweight = dhead_.data(), args_.accumulate_dweight = 1;
    args_.workspace_budget_bytes = size_t{1} << 20;
    workspace_.resize(xce::api::workspace_bytes(context_, XCE_FORWARD_BACKWARD, args_));
    args_.workspace = workspace_.data(), args_.workspace_size_bytes = workspace_.size();
  }

  // The mean loss over the step's tokens, before its update.
  double step(const std::vector<MicroBatch>& batches, float rate) {
    count(batches);
    loss_ = 0;
    dembedding_.assign(embedding_.size(), 0.0f);
    dhead_.assign(head_.size(), 0.0f);
    for (const MicroBatch& batch : batches) {
      for (int64_t i = 0; i < kRows; ++i)
        for (int64_t h = 0; h < kHidden; ++h) x_[i * kHidden + h] = embedding_[batch.tokens[i] * kHidden + h];
      args_.loss.labels = batch.labels.data();
      xce::api::forward_backward(context_, args_);
      for (int64_t i = 0; i < kRows; ++i)
        for (int64_t h = 0; h < kHidden; ++h) dembedding_[batch.tokens[i] * kHidden + h] += dx_[i * kHidden + h];
    }
    for (size_t i = 0; i < head_.size(); ++i) {
      embedding_[i] -= rate * dembedding_[i];
      head_[i] -= rate * dhead_[i];
    }
    return loss_;
  }

 private:
  void count(const std::vector<MicroBatch>& batches) {
    xce::api::LossCount args;
    args.loss = args_.loss;
    args.loss.denominator = nullptr, args.loss.loss_total = nullptr;
    args.loss.weight_sum = &tokens_;
    for (const MicroBatch& batch : batches) {
      args.loss.labels = batch.labels.data();
      xce::api::count(context_, args);
      args.accumulate = 1;
    }
  }

  xce::api::Context context_;
  xce::api::LinearCrossEntropy args_;
  std::vector<float> embedding_, head_, dembedding_, dhead_ = std::vector<float>(kVocab * kHidden);
  std::vector<float> x_ = std::vector<float>(kRows * kHidden), dx_ = x_;
  std::vector<char> workspace_;
  double loss_ = 0, tokens_ = 0;
};

}  // namespace

int main() {
  Engine engine;
  uint64_t state = 1;
  for (int step = 0; step <= 300; ++step) {
    std::vector<MicroBatch> batches;
    for (int i = 0; i < kMicroBatches; ++i) batches.push_back(draw(state, i));
    const double loss = engine.step(batches, 20.0f);
    if (step % 100 == 0) std::printf("step %3d  loss %.3f  (ln V %.3f)\n", step, loss, std::log(1.0 * kVocab));
    if (step == 300) return loss < 0.1 ? 0 : 1;
  }
}

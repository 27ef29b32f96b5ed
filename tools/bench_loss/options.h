// What bench_loss is asked to race.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/base/dtype.h"

namespace xce::bench {

struct LossShape {
  int64_t rows, hidden, vocab;
};

// Options of the loss that one contender has, by the names of --with.
struct Features {
  bool bias = false, class_weights = false, token_weights = false, smoothing = false, z_loss = false, softcap = false;
  bool scale = false, entropy = false, accuracy = false, probabilities = false;
  std::string name = "none";
};

struct LossBenchOptions {
  std::string device = "cpu";
  bool plain = false;  // cross-entropy over given logits instead of the linear head's
  std::vector<LossShape> shapes;
  std::vector<Features> features;
  std::vector<int64_t> budgets_mib;  // 0: what 4096 rows need
  DType dtype = DType::kF32;
  int rounds = 0, threads = 2;
  double hold_ms = 250;
  bool json = false, untuned = false, plans = false, tf32 = false, narrow = false;
};

// Error(kUsage) names what is wrong; what is not given takes the device's defaults.
LossBenchOptions parse_loss_bench(int argc, char** argv);

}  // namespace xce::bench

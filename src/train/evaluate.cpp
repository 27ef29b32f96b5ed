#include "src/train/evaluate.h"

namespace xce {

EvalResult evaluate(Step& step, const ValidationWindows& windows, int64_t max_windows) {
  int64_t count = max_windows > 0 ? std::min(max_windows, windows.count()) : windows.count();
  int64_t batch = step.settings().micro_batch, rows = step.settings().micro_rows();
  std::vector<int32_t> tokens(static_cast<size_t>(rows)), targets(static_cast<size_t>(rows));
  EvalResult total;
  for (int64_t first = 0; first < count; first += batch) {
    int64_t here = std::min(batch, count - first);
    std::fill(tokens.begin(), tokens.end(), 0);
    std::fill(targets.begin(), targets.end(), kIgnoreTarget);
    for (int64_t i = 0; i < here; ++i) {
      int64_t window = (first + i) * windows.count() / count, at = i * step.settings().seq_len;
      windows.fill(window, 1, tokens.data() + at, targets.data() + at);
    }
    EvalResult part = step.evaluate(tokens.data(), targets.data());
    total.loss_sum += part.loss_sum;
    total.targets += part.targets;
  }
  return total;
}

}  // namespace xce

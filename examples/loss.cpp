// The loss library on its own: loss and gradients of a linear head over 32,000 labels, in 16 MiB of workspace.
// All the logits would be 32 MiB; they are computed a part at a time and never kept.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <vector>

#include "kernels/cpu/parallel.h"
#include "kernels/linear_cross_entropy/linear_cross_entropy.h"

int main() {
  const int64_t rows = 256, hidden = 64, vocab = 32000;
  std::vector<float> x(rows * hidden), weight(vocab * hidden), dx(x.size()), dweight(weight.size());
  std::vector<int32_t> targets(rows);
  for (size_t i = 0; i < x.size(); ++i) x[i] = std::sin(static_cast<float>(i));
  for (size_t i = 0; i < weight.size(); ++i) weight[i] = 0.02f * std::cos(static_cast<float>(i));
  for (int64_t i = 0; i < rows; ++i) targets[i] = static_cast<int32_t>(i * 97 % vocab);

  xce::ThreadPool pool(2);
  xce::CpuExec exec{&pool};
  float loss = 0;
  xce::LinearCrossEntropyForwardBackward call{
      .in = {.x = x.data(),
             .weight = weight.data(),
             .bias = nullptr,
             .targets = {.index = targets.data()},
             .rows = rows,
             .hidden = hidden,
             .vocab = vocab,
             .dtype = xce::DType::kF32},
      .options = {},
      .out = {.loss = &loss},
      .upstream = {},
      .grad = {.dx = dx.data(), .dweight = dweight.data()},
      .workspace = {.budget_bytes = size_t{16} << 20},
  };
  std::vector<char> workspace(workspace_bytes(exec, call));
  call.workspace.data = workspace.data();
  call.workspace.size_bytes = workspace.size();
  launch(exec, call);

  std::printf("loss %.4f, ln V %.4f, workspace %zu bytes, all logits %lld bytes\n", loss, std::log(1.0 * vocab),
              workspace.size(), static_cast<long long>(rows * vocab * sizeof(float)));
}

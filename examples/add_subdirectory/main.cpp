// The loss of four rows over 16 equal logits: ln 16, whatever the targets.
#include <cstdint>
#include <cstdio>
#include <vector>

#include "kernels/cpu/parallel.h"
#include "kernels/linear_cross_entropy/linear_cross_entropy.h"

int main() {
  const int64_t rows = 4, hidden = 8, vocab = 16;
  std::vector<float> x(rows * hidden, 1.0f), weight(vocab * hidden, 0.5f);
  std::vector<int32_t> targets = {0, 5, 10, 15};
  float loss = 0;
  xce::ThreadPool pool(1);
  xce::CpuExec exec{&pool};
  xce::LinearCrossEntropyForward call{
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
      .workspace = {.budget_bytes = size_t{1} << 20},
  };
  std::vector<char> workspace(workspace_bytes(exec, call));
  call.workspace.data = workspace.data();
  call.workspace.size_bytes = workspace.size();
  launch(exec, call);
  std::printf("loss %.4f\n", loss);
}

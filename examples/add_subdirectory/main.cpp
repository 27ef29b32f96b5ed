// The loss of four rows over 16 equal logits: ln 16, whatever the targets.
#include <cstdint>
#include <cstdio>
#include <vector>
#include <xce/xce.hpp>

int main() {
  const int64_t rows = 4, hidden = 8, vocab = 16;
  const std::vector<float> x(rows * hidden, 1.0f), weight(vocab * hidden, 0.5f);
  const std::vector<int32_t> labels = {0, 5, 10, 15};
  float loss = 0;

  const auto context = xce::api::Context::cpu(1);
  xce::api::LinearCrossEntropy args;
  args.loss.rows = rows, args.loss.vocab = vocab, args.hidden = hidden;
  args.loss.dtype = XCE_FLOAT32, args.loss.label_dtype = XCE_INT32;
  args.loss.labels = labels.data();
  args.loss.loss = &loss;
  args.x = x.data(), args.weight = weight.data();
  std::vector<char> workspace(xce::api::workspace_bytes(context, XCE_FORWARD, args));
  args.workspace = workspace.data();
  args.workspace_size_bytes = workspace.size();
  xce::api::forward(context, args);
  std::printf("loss %.4f\n", loss);
}

#include "src/train/sample.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "kernels/linear.h"
#include "src/core/rng.h"

namespace xce {
namespace {

// Logits of the row at `position`, as doubles, into out (null while planning).
void logits_at(const Llama& model, Tape& tape, Memory& memory, Tokens tokens, int64_t position,
               std::vector<double>* out) {
  tape.set_recording(false);
  Var h = model.hidden(tape, tokens), weight = model.head(tape), logits = tape.make({1, weight.rows()});
  const char* hidden = static_cast<const char*>(h.data());
  int64_t skip = position * h.cols() * static_cast<int64_t>(size_of(h.dtype()));
  tape.run_with_workspace(LinearForward{.x = hidden ? hidden + skip : nullptr,
                                        .weight = weight.data(),
                                        .y = logits.data(),
                                        .workspace = nullptr,
                                        .workspace_size_bytes = 0,
                                        .rows = 1,
                                        .in = h.cols(),
                                        .out = weight.rows(),
                                        .dtype = h.dtype()});
  if (!out) return;
  visit_dtype(h.dtype(), [&]<class T>(std::type_identity<T>) {
    std::vector<T> row(static_cast<size_t>(weight.rows()));
    memory.copy_out(row.data(), logits.data(), row.size() * sizeof(T));
    out->assign(row.begin(), row.end());
  });
}

int32_t draw(const std::vector<double>& logits, double temperature, double uniform) {
  auto likeliest = std::max_element(logits.begin(), logits.end());
  if (temperature == 0) return static_cast<int32_t>(likeliest - logits.begin());
  double sum = 0;
  for (double z : logits) sum += std::exp((z - *likeliest) / temperature);
  double target = uniform * sum, so_far = 0;
  for (size_t v = 0; v < logits.size(); ++v) {
    so_far += std::exp((logits[v] - *likeliest) / temperature);
    if (so_far >= target) return static_cast<int32_t>(v);
  }
  return static_cast<int32_t>(logits.size()) - 1;
}

}  // namespace

std::vector<int32_t> sample(const Llama& model, ParameterSet& parameters, Device& device, std::vector<int32_t> prompt,
                            const SampleOptions& options) {
  XCE_CHECK(!prompt.empty(), "a prompt of at least one token", "none");
  XCE_CHECK(options.seq_len >= 1, "SampleOptions.seq_len >= 1", options.seq_len);
  XCE_CHECK(options.temperature >= 0, "SampleOptions.temperature >= 0", options.temperature);
  for (int32_t id : prompt)
    if (id < 0 || id >= model.config().vocab_size)
      throw Error(ErrorCode::kUsage,
                  str("the prompt's token ", id, " is outside the vocabulary of ", model.config().vocab_size));

  Arena plan;
  Tape dry(device.exec(), plan, parameters);
  logits_at(model, dry, device.memory(), {nullptr, options.seq_len}, 0, nullptr);
  std::vector<int32_t> window(static_cast<size_t>(options.seq_len));
  Buffer memory(plan.peak_bytes(), device.memory()), ids(window.size() * sizeof(int32_t), device.memory());
  Arena arena(memory.data(), memory.size_bytes(), device.memory());

  Rng rng(options.seed, "sample");
  std::vector<int32_t> text = std::move(prompt);
  std::vector<double> logits;
  for (int64_t i = 0; i < options.count; ++i) {
    int64_t used = std::min<int64_t>(static_cast<int64_t>(text.size()), options.seq_len);
    std::fill(window.begin(), window.end(), 0);
    std::copy(text.end() - used, text.end(), window.begin());
    device.memory().copy_in(ids.data(), window.data(), ids.size_bytes());
    Tape tape(device.exec(), arena, parameters);
    logits_at(model, tape, device.memory(), {ids.as<int32_t>(), options.seq_len}, used - 1, &logits);
    text.push_back(draw(logits, options.temperature, rng.uniform(static_cast<uint64_t>(i))));
  }
  return text;
}

}  // namespace xce

// The part of a fuzzed call that all share: an xce_loss, its arrays, and what is asserted of every call.
#pragma once

#include <xce/xce.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "tests/capi/fuzz_arrays.h"

namespace xce::fuzz {

inline size_t size_of(int32_t dtype) {  // of a wrong dtype: as of the largest
  return dtype == XCE_FLOAT32 || dtype == XCE_INT32 ? 4 : dtype == XCE_BFLOAT16 || dtype == XCE_FLOAT16 ? 2 : 8;
}
inline size_t accum_of(int32_t dtype) {
  return dtype == XCE_FLOAT64 ? 8 : 4;
}
inline bool is_float(int32_t dtype) {
  return dtype == XCE_FLOAT32 || dtype == XCE_BFLOAT16 || dtype == XCE_FLOAT64 || dtype == XCE_FLOAT16;
}
inline Wide vocab_global(const xce_loss& loss) {
  return loss.vocab_global ? loss.vocab_global : Wide{loss.shard_offset} + loss.vocab;
}
inline bool is_shard(const xce_loss& loss) {
  return loss.shard_offset != 0 || loss.vocab_global > loss.vocab;
}

// A few bits of a value: what the calls compute is not looked at here, but they must bear all of it.
inline void put(unsigned char* to, int32_t dtype, float value) {
  uint32_t word = 0;
  std::memcpy(&word, &value, 4);
  const double wide = value;
  if (dtype == XCE_FLOAT64) return void(std::memcpy(to, &wide, 8));
  if (dtype == XCE_FLOAT32) return void(std::memcpy(to, &value, 4));
  const bool special = (word & 0x7f800000u) == 0x7f800000u;
  const uint16_t half = dtype == XCE_BFLOAT16 ? static_cast<uint16_t>(word >> 16)
                        : special             ? static_cast<uint16_t>(word & 0x7fffffu ? 0x7e00
                                                                      : word >> 31     ? 0xfc00
                                                                                       : 0x7c00)
                                  : static_cast<uint16_t>((word >> 16 & 0x8000u) | 0x3800u | (word >> 13 & 0x3ffu));
  std::memcpy(to, &half, 2);
}

struct Call {
  explicit Call(Choices& choices) : c(choices), arrays(choices), state(c.bits(2) | 1), strange(c.rarely(4)) {}

  Choices& c;
  Arrays arrays;
  uint64_t state;
  bool strange;  // NaN, infinities and huge numbers among the values
  bool spoilt = false;

  uint64_t draw() { return (state = state * 6364136223846793005u + 1442695040888963407u) >> 33; }
  float value() {
    if (strange && draw() % 8 == 0) {
      constexpr float kInf = std::numeric_limits<float>::infinity();
      const float odd[] = {kInf, -kInf, kInf - kInf, 3e38f, -3e38f, 1e-42f, 0, 65504};
      return odd[draw() % 8];
    }
    return static_cast<float>(static_cast<int64_t>(draw() % 4001) - 2000) / 1000;
  }
  void fill(Buffer* buffer, int32_t dtype, bool positive = false) {
    if (!buffer) return;
    for (size_t at = 0; at < buffer->bytes(); at += buffer->element()) {
      const float v = value();
      put(buffer->begin() + at, dtype, positive ? std::fabs(v) : v);
    }
  }
  void fill_counts(Buffer* buffer, bool added) {
    if (buffer && added) std::memset(buffer->begin(), 0, buffer->bytes());
  }
  template <class T>
  void in(T*& field, const char* name, const Layout& layout, int32_t dtype, bool positive = false) {
    fill(arrays.give(field, name, layout, size_of(dtype), Role::kIn), dtype, positive);
  }
  template <class T>
  void out(T*& field, const char* name, const Layout& layout, size_t element) {
    field = nullptr;
    if (c.below(3) != 2) arrays.give(field, name, layout, element, Role::kOut);
  }
  template <class Args>
  void maybe_spoil(Args& args) {
    if (c.below(3) == 0) return;
    const Args before = args;
    for (int64_t n = 1 + c.below(2); n > 0; --n) spoil(c, args);
    spoilt = std::memcmp(&before, &args, sizeof(Args)) != 0;
  }

  // Scalars of a right loss; `shard`: also parts of a vocabulary.
  void scalars(xce_loss& loss, bool shard) {
    current = &loss;
    loss.rows = c.below(8) == 7 ? 0 : 1 + c.below(9);
    loss.vocab = 1 + c.below(40);
    if (shard && c.below(2)) loss.shard_offset = c.below(60), loss.vocab_global = 1 + c.below(90);
    if (!shard && c.rarely(4)) loss.vocab_global = 1 + c.below(loss.vocab);
    loss.dtype = c.pick({XCE_FLOAT32, XCE_BFLOAT16, XCE_FLOAT16, XCE_FLOAT64});
    loss.label_dtype = c.pick({XCE_INT32, XCE_INT64});
    loss.label_stride = c.pick<int64_t>({0, 1, 3, -2});
    if (c.below(2)) loss.has_ignore_index = 1, loss.ignore_index = c.below(5) - 1;
    loss.reduction = c.pick({XCE_MEAN, XCE_SUM, XCE_NONE});
    loss.z_loss = c.pick({0.0, 0.01, 1e30});
    loss.label_smoothing = c.pick({0.0, 0.1, 1.0});
    loss.softcap = c.pick({0.0, 3.0, 1e30, 1e-30});
    loss.logit_scale = c.pick({0.0, 1.0, -0.5, 1e30});
    loss.empty_is_nan = c.rarely(4), loss.out_of_range_is_nan = c.rarely(4);
    loss.upstream_is_scalar = c.rarely(4), loss.upstream_stride = c.pick<int64_t>({0, 1, 2, -1});
    if (c.rarely(3)) {  // probability targets
      loss.has_ignore_index = 0, loss.ignore_index = 0;
      loss.probability_dtype = c.pick<int32_t>({0, XCE_FLOAT32, XCE_BFLOAT16, XCE_FLOAT16, XCE_FLOAT64});
      loss.ld_probabilities = c.below(2) ? loss.vocab + c.below(3) : 0;
      by_probabilities = true;
    }
  }
  bool by_probabilities = false;

  // Arrays of a loss; results only where `results`, the residual in where `backward`.
  void loss_arrays(xce_loss& loss, bool results, bool backward) {
    const Wide n = loss.rows, v = loss.vocab;
    const size_t accum = accum_of(loss.dtype);
    const int32_t accum_dtype = accum == 8 ? XCE_FLOAT64 : XCE_FLOAT32;
    loss.labels = nullptr, loss.probabilities = nullptr;
    if (by_probabilities)
      in(loss.probabilities, "probabilities", {n, v, loss.ld_probabilities},
         loss.probability_dtype ? loss.probability_dtype : loss.dtype, true);
    else
      labels(loss);
    loss.class_weights = loss.token_weights = loss.upstream = nullptr;
    loss.denominator = nullptr;
    if (c.below(2)) in(loss.class_weights, "class_weights", {1, vocab_global(loss)}, accum_dtype, true);
    if (c.below(2)) in(loss.token_weights, "token_weights", {1, n}, accum_dtype, true);
    if (loss.reduction == XCE_MEAN && c.rarely(4)) in(loss.denominator, "denominator", {}, XCE_FLOAT64);
    const bool by_row = loss.reduction == XCE_NONE && !loss.upstream_is_scalar;
    const Layout values{by_row ? n : 1, 1, by_row ? Wide{loss.upstream_stride} : 0};
    if (c.below(2)) in(loss.upstream, "upstream", values, accum_dtype);
    void** const residual[2] = {&loss.offset, &loss.logsum};
    const char* const names[2] = {"offset", "logsum"};
    for (int i = 0; i < 2; ++i) {
      if (backward)
        in(*residual[i], names[i], {1, n}, accum_dtype);
      else if (results)
        out(*residual[i], names[i], {1, n}, accum);
      else
        *residual[i] = nullptr;
    }
    auto result = [&](auto*& field, const char* name, Wide count, size_t element) {
      field = nullptr;
      if (results) out(field, name, {1, count}, element);
    };
    result(loss.loss, "loss", 1, accum), result(loss.row_loss, "row_loss", n, accum);
    result(loss.z_loss_part, "z_loss_part", 1, accum);
    result(loss.row_max, "row_max", n, accum), result(loss.row_entropy, "row_entropy", n, accum);
    result(loss.argmax, "argmax", n, 8), result(loss.n_valid, "n_valid", 1, 8);
    loss.n_correct = nullptr;
    if (!by_probabilities) result(loss.n_correct, "n_correct", 1, 8);
    result(loss.out_of_range, "out_of_range", 1, 8), result(loss.weight_sum, "weight_sum", 1, 8);
    result(loss.first_out_of_range, "first_out_of_range", 1, 8);
    loss.loss_total = nullptr;
    if (results && c.below(2)) fill(arrays.give(loss.loss_total, "loss_total", {}, 8, Role::kAdded), XCE_FLOAT64);
  }
  void labels(xce_loss& loss) {
    const Layout layout{loss.rows, 1, loss.label_stride};
    Buffer* buffer = arrays.give(loss.labels, "labels", layout, loss.label_dtype == XCE_INT32 ? 4 : 8, Role::kIn);
    if (!buffer) return;
    const int64_t extremes[] = {INT64_MIN, INT64_MAX, INT32_MIN, INT32_MAX, -1, -100};
    for (size_t at = 0; at < buffer->bytes(); at += buffer->element()) {
      const int64_t label = draw() % 8 == 0 ? extremes[draw() % 6] : static_cast<int64_t>(draw() % 48);
      std::memcpy(buffer->begin() + at, &label, buffer->element());
    }
  }

  // What the arguments' own words make wrong, whatever else they say.
  static bool is_wrong(const xce_loss& loss) {
    auto flag = [](int32_t value) { return value == 0 || value == 1; };
    return loss.rows < 0 || loss.vocab < 1 || !is_float(loss.dtype) || !flag(loss.has_ignore_index) ||
           !flag(loss.empty_is_nan) || !flag(loss.out_of_range_is_nan) || !flag(loss.upstream_is_scalar) ||
           loss.reduction < 0 || loss.reduction > 2 || !(loss.label_smoothing >= 0 && loss.label_smoothing <= 1) ||
           !(loss.softcap >= 0) || std::isinf(loss.softcap) || !(loss.z_loss >= 0) || std::isinf(loss.z_loss) ||
           !std::isfinite(loss.logit_scale) || loss.shard_offset < 0 || loss.vocab_global < 0 ||
           (loss.labels && loss.probabilities) ||
           std::any_of(loss.reserved, loss.reserved + 8, [](uint64_t word) { return word != 0; });
  }
  static bool lacks_targets(const xce_loss& loss) { return loss.rows > 0 && !loss.labels && !loss.probabilities; }
  // `wrong`: the call has to be refused.
  bool finish(xce_status status, const char* function, bool wrong) {
    if (status == XCE_OK) {
      expect(!wrong && !arrays.any_odd(), "a wrong call to be refused", function);
      arrays.expect_written();
      return true;
    }
    expect(status == XCE_ERROR_INVALID_ARGUMENT || status == XCE_ERROR_UNSUPPORTED || status == XCE_ERROR_WORKSPACE,
           "a status of refusals", xce_last_error());
    expect(std::string(xce_last_error()).rfind(std::string(function) + ": expected ", 0) == 0 ||
               std::string(xce_last_error()).find("args.workspace_budget_bytes") != std::string::npos,
           "a message with function and expectation", xce_last_error());
    expect(wrong || spoilt || arrays.any_left_out(), "a right call to be taken", xce_last_error());
    arrays.expect_untouched();
    return false;
  }
};

}  // namespace xce::fuzz

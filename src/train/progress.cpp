// Times come from the records, so what is shown is a function of them.
#include "src/train/progress.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "src/core/log.h"

namespace xce {
namespace {

constexpr double kRedrawMs = 100;
constexpr double kRecentWeight = 0.05;  // about the last 20 steps

template <class... Args>
std::string printed(const char* format, Args... args) {
  char buffer[128];
  std::snprintf(buffer, sizeof buffer, format, args...);
  return buffer;
}

std::string step_of(const StepRecord& record, int64_t steps) {
  std::string total = std::to_string(steps);
  return printed("step %*lld/%s", static_cast<int>(total.size()), static_cast<long long>(record.step), total.c_str());
}

}  // namespace

std::string step_line(const StepRecord& record, int64_t steps) {
  std::string line = step_of(record, steps);
  line += printed("  loss %.4f  norm %.3f  lr %.2e", record.loss, record.grad_norm, record.lr);
  line += printed("  %.1f ms  %.0f tok/s", record.time_ms, record.tokens_per_s);
  if (record.mfu) line += printed("  MFU %.1f%%", 100 * *record.mfu);
  line += printed("  mem %s  data %.1f%%", format_memory(record.memory_bytes).c_str(), 100 * record.data_wait);
  if (record.skipped > 0) line += printed("  skipped %lld", static_cast<long long>(record.skipped));
  if (record.val_loss) line += printed("  val_loss %.4f", *record.val_loss);
  if (record.bits_per_byte) line += printed(" (%.4f bits/byte)", *record.bits_per_byte);
  return line;
}

std::string progress_bar(const StepRecord& record, int64_t steps, double eta_s, int columns) {
  double done = steps > 0 ? std::clamp(static_cast<double>(record.step) / static_cast<double>(steps), 0.0, 1.0) : 1.0;
  std::string text = printed(" %3d%%  ", static_cast<int>(100 * done)) + step_of(record, steps);
  text += printed("  loss %.4f  %.0f tok/s", record.loss, record.tokens_per_s);
  if (record.skipped > 0) text += printed("  skipped %lld", static_cast<long long>(record.skipped));
  text += "  eta " + format_duration(eta_s);
  int width = std::min(40, columns - 3 - static_cast<int>(text.size()));
  if (width < 5) return text.substr(1);
  auto filled = static_cast<size_t>(done * width);
  std::string bar(filled, '=');
  if (filled < static_cast<size_t>(width)) bar += '>';
  bar.resize(static_cast<size_t>(width), ' ');
  return "[" + bar + "]" + text;
}

std::string format_duration(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0 || seconds > 1e9) return "?";
  auto s = static_cast<long long>(std::llround(seconds));
  long long days = s / 86400, hours = s / 3600 % 24, minutes = s / 60 % 60;
  if (days > 0) return printed("%lldd %02lld:%02lld:%02lld", days, hours, minutes, s % 60);
  if (hours > 0) return printed("%lld:%02lld:%02lld", hours, minutes, s % 60);
  return printed("%lld:%02lld", minutes, s % 60);
}

std::string format_memory(int64_t bytes) {
  double mib = static_cast<double>(bytes) / (1 << 20);
  return mib < 1024 ? printed("%.1f MiB", mib) : printed("%.2f GiB", mib / 1024);
}

Progress::~Progress() {
  show_status("");
}

double Progress::eta_s(const StepRecord& record) const {
  double left_ms = mean_ms_ * static_cast<double>(std::max<int64_t>(0, options_.steps - record.step));
  if (options_.max_minutes > 0) left_ms = std::min(left_ms, std::max(0.0, options_.max_minutes * 60e3 - elapsed_ms_));
  return left_ms / 1e3;
}

void Progress::show(const StepRecord& record) {
  bool first = elapsed_ms_ == 0, last = record.step >= options_.steps;
  mean_ms_ = first ? record.time_ms : mean_ms_ + kRecentWeight * (record.time_ms - mean_ms_);
  elapsed_ms_ += record.time_ms;
  bool in_turn = record.step % options_.every == 0 || record.step == options_.first_step + 1 || last;
  if (record.val_loss || (in_turn && !log_has_terminal())) log().info("{}", step_line(record, options_.steps));
  if (!log_has_terminal() || (!first && !last && elapsed_ms_ - drawn_ms_ < kRedrawMs)) return;
  drawn_ms_ = elapsed_ms_;
  show_status(progress_bar(record, options_.steps, eta_s(record), log_columns() - 1));
}

}  // namespace xce

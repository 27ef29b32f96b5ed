// Lines are written whole by one call each; only the last one can be torn.
#include "src/train/metrics.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "kernels/base/check.h"
#include "src/core/number.h"

namespace xce {
namespace {

constexpr uint64_t kMaxFileBytes = uint64_t{8} << 30;

std::string number(double value) {
  return std::isfinite(value) ? format_double(value) : "null";
}

double double_or_nan(const nlohmann::json& object, const char* key) {
  const nlohmann::json& value = object.at(key);
  return value.is_null() ? std::numeric_limits<double>::quiet_NaN() : value.get<double>();
}

std::optional<double> optional_double(const nlohmann::json& object, const char* key) {
  auto found = object.find(key);
  if (found == object.end()) return {};
  return double_or_nan(object, key);
}

std::optional<StepRecord> parse_line(const std::string& line) {
  try {
    nlohmann::json object = nlohmann::json::parse(line);
    StepRecord record;
    record.step = object.at("step").get<int64_t>();
    record.tokens = object.at("tokens").get<int64_t>();
    record.loss = double_or_nan(object, "loss");
    record.grad_norm = double_or_nan(object, "grad_norm");
    record.lr = double_or_nan(object, "lr");
    record.time_ms = double_or_nan(object, "time_ms");
    record.tokens_per_s = double_or_nan(object, "tokens_per_s");
    record.mfu = optional_double(object, "mfu");
    record.memory_bytes = object.at("memory_bytes").get<int64_t>();
    record.data_wait = double_or_nan(object, "data_wait");
    record.skipped = object.at("skipped").get<int64_t>();
    record.val_loss = optional_double(object, "val_loss");
    record.bits_per_byte = optional_double(object, "bits_per_byte");
    return record;
  } catch (const nlohmann::json::exception&) {
    return {};
  }
}

struct Line {
  std::string text;
  StepRecord record;
};

std::vector<Line> read_lines(const fs::path& path) {
  std::string text = read_text_file(path, kMaxFileBytes);
  std::vector<Line> lines;
  for (size_t begin = 0; begin < text.size();) {
    size_t end = std::min(text.find('\n', begin), text.size());
    std::string line = text.substr(begin, end - begin);
    begin = end + 1;
    std::optional<StepRecord> record = parse_line(line);
    if (record) {
      lines.push_back({std::move(line), *record});
    } else if (begin < text.size()) {
      throw Error(ErrorCode::kCorrupt, str(path.native(), ":", lines.size() + 1, ": not a metrics record"));
    }
  }
  return lines;
}

std::string lines_up_to(const fs::path& path, int64_t last_step) {
  std::string kept;
  for (const Line& line : read_lines(path)) {
    if (line.record.step <= last_step) kept += line.text + '\n';
  }
  return kept;
}

}  // namespace

std::string to_json(const StepRecord& record) {
  std::string json = str("{\"step\":", record.step, ",\"tokens\":", record.tokens, ",\"loss\":", number(record.loss),
                         ",\"grad_norm\":", number(record.grad_norm), ",\"lr\":", number(record.lr),
                         ",\"time_ms\":", number(record.time_ms), ",\"tokens_per_s\":", number(record.tokens_per_s));
  if (record.mfu) json += ",\"mfu\":" + number(*record.mfu);
  json += str(",\"memory_bytes\":", record.memory_bytes, ",\"data_wait\":", number(record.data_wait),
              ",\"skipped\":", record.skipped);
  if (record.val_loss) json += ",\"val_loss\":" + number(*record.val_loss);
  if (record.bits_per_byte) json += ",\"bits_per_byte\":" + number(*record.bits_per_byte);
  return json + "}";
}

std::vector<StepRecord> read_metrics(const fs::path& path) {
  std::vector<StepRecord> records;
  for (const Line& line : read_lines(path)) records.push_back(line.record);
  return records;
}

MetricsWriter::MetricsWriter(const fs::path& path, int64_t resumed_step) : path_(path) {
  std::error_code error;
  bool exists = fs::exists(path_, error);
  if (exists) write_text_file(path_, resumed_step > 0 ? lines_up_to(path_, resumed_step) : "");
  fd_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (fd_ < 0) throw_disk_error("open", path_, errno);
}

MetricsWriter::~MetricsWriter() {
  if (fd_ >= 0) ::close(fd_);
}

void MetricsWriter::append(const StepRecord& record) {
  std::string line = to_json(record) + '\n';
  for (size_t done = 0; done < line.size();) {
    ssize_t put = ::write(fd_, line.data() + done, line.size() - done);
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) throw_disk_error("write", path_, put < 0 ? errno : EIO);
    done += static_cast<size_t>(put);
  }
}

void MetricsWriter::sync() {
  if (::fdatasync(fd_) != 0) throw_disk_error("synchronise", path_, errno);
}

}  // namespace xce

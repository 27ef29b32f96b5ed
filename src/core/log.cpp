// A spdlog sink that takes the status line away before a message and puts it back after.
#include "src/core/log.h"

#include <spdlog/sinks/base_sink.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>

namespace xce {
namespace {

constexpr const char* kEraseLine = "\r\x1b[K";

const char* level_prefix(spdlog::level::level_enum level) {
  if (level >= spdlog::level::err) return "error: ";
  return level == spdlog::level::warn ? "warning: " : "";
}
const char* level_color(spdlog::level::level_enum level) {
  return level >= spdlog::level::err ? "\x1b[1;31m" : "\x1b[33m";
}

class StatusSink : public spdlog::sinks::base_sink<std::mutex> {
 public:
  explicit StatusSink(const LogOptions& options) : options_(options) {}

  void show(const std::string& line) {
    if (!options_.terminal) return;
    std::lock_guard<std::mutex> lock(mutex_);
    status_ = line.substr(0, static_cast<size_t>(columns() - 1));  // a full line would wrap and stay behind
    put(kEraseLine + status_);
    std::fflush(options_.stream);
  }

  bool terminal() const { return options_.terminal; }
  int columns() const {
    winsize size{};
    bool known = ::ioctl(::fileno(options_.stream), TIOCGWINSZ, &size) == 0 && size.ws_col > 1;
    return known ? size.ws_col : 80;
  }

 protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    std::string line = status_.empty() ? "" : kEraseLine;
    std::string prefix = level_prefix(message.level);
    line += options_.color && !prefix.empty() ? level_color(message.level) + prefix + "\x1b[0m" : prefix;
    line.append(message.payload.data(), message.payload.size());
    put(line + '\n' + status_);
    std::fflush(options_.stream);
  }
  void flush_() override { std::fflush(options_.stream); }

 private:
  void put(const std::string& text) { std::fwrite(text.data(), 1, text.size(), options_.stream); }

  LogOptions options_;
  std::string status_;
};

struct Log {
  std::shared_ptr<StatusSink> sink;
  std::unique_ptr<spdlog::logger> logger;

  explicit Log(const LogOptions& options)
      : sink(std::make_shared<StatusSink>(options)), logger(std::make_unique<spdlog::logger>("xce", sink)) {
    logger->set_level(options.quiet ? spdlog::level::warn : spdlog::level::info);
  }
};

Log& the_log() {
  static Log instance{LogOptions{}};
  return instance;
}

}  // namespace

LogOptions log_options_from_environment() {
  const char* no_color = std::getenv("NO_COLOR");
  const char* term = std::getenv("TERM");
  bool dumb = term == nullptr || std::strcmp(term, "dumb") == 0;
  LogOptions options;
  options.terminal = ::isatty(::fileno(options.stream)) != 0 && !dumb;
  options.color = options.terminal && (no_color == nullptr || *no_color == '\0');
  return options;
}

void start_log(const LogOptions& options) {
  the_log() = Log(options);
}

spdlog::logger& log() {
  return *the_log().logger;
}

bool log_has_terminal() {
  return the_log().sink->terminal();
}

int log_columns() {
  return the_log().sink->columns();
}

void show_status(const std::string& line) {
  the_log().sink->show(line);
}

}  // namespace xce

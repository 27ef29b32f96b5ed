// Messages for people, on stderr: plain lines, "warning: " and "error: " before graver ones, and below them one status
// line (a progress bar) that is redrawn in place, so that messages and bar never mix.
#pragma once

#include <spdlog/logger.h>

#include <cstdio>
#include <string>

namespace xce {

struct LogOptions {
  std::FILE* stream = stderr;
  bool terminal = false;  // false: no status line
  bool color = false;
  bool quiet = false;  // warnings and errors only: ranks other than 0
};
// For stderr as it is: whether it is a terminal that can move its cursor; colour unless NO_COLOR is set and not empty.
LogOptions log_options_from_environment();

// Call once at start, from one thread; before it, messages go plainly to stderr.
void start_log(const LogOptions& options);

// The program's logger, thread-safe: log().info("step {}", 5).
spdlog::logger& log();

bool log_has_terminal();
int log_columns();                          // width of the terminal, 80 if unknown
void show_status(const std::string& line);  // one line of ASCII, cut to the width; "" removes it

}  // namespace xce

// What reaches the stream, byte for byte.
#include "src/core/log.h"

#include <gtest/gtest.h>

#include <cstdlib>

namespace xce {
namespace {

// Starts the log on a temporary file and gives what was written to it.
class LogTest : public testing::Test {
 protected:
  void start(bool terminal, bool color, bool quiet = false) { start_log({stream_, terminal, color, quiet}); }
  std::string written() {
    std::fflush(stream_);
    std::string text(static_cast<size_t>(std::ftell(stream_)), '\0');
    std::rewind(stream_);
    EXPECT_EQ(std::fread(text.data(), 1, text.size(), stream_), text.size());
    return text;
  }
  void TearDown() override {
    start_log({});
    std::fclose(stream_);
  }
  std::FILE* stream_ = std::tmpfile();
};

TEST_F(LogTest, PlainLines) {
  start(false, false);
  log().info("step {}", 5);
  log().debug("unseen");
  log().warn("low {}", "disk");
  log().error("bad");
  show_status("no terminal, no bar");
  EXPECT_EQ(written(), "step 5\nwarning: low disk\nerror: bad\n");
  EXPECT_FALSE(log_has_terminal());
}

TEST_F(LogTest, QuietRanksWarnOnly) {
  start(false, false, true);
  log().info("hello");
  log().warn("careful");
  EXPECT_EQ(written(), "warning: careful\n");
}

TEST_F(LogTest, ColorMarksGravity) {
  start(true, true);
  log().info("a");
  log().warn("b");
  log().error("c");
  EXPECT_EQ(written(), "a\n\x1b[33mwarning: \x1b[0mb\n\x1b[1;31merror: \x1b[0mc\n");
}

TEST_F(LogTest, StatusLineStaysBelowTheMessages) {
  start(true, false);
  EXPECT_TRUE(log_has_terminal());
  EXPECT_EQ(log_columns(), 80);
  log().info("a");
  show_status("[=>  ]");
  log().info("b");
  show_status("[==> ]");
  show_status("");
  log().info("c");
  EXPECT_EQ(written(), "a\n\r\x1b[K[=>  ]\r\x1b[Kb\n[=>  ]\r\x1b[K[==> ]\r\x1b[Kc\n");
}

TEST_F(LogTest, StatusLineIsCutToTheWidth) {
  start(true, false);
  show_status(std::string(200, '='));
  EXPECT_EQ(written(), "\r\x1b[K" + std::string(79, '='));
}

TEST_F(LogTest, EnvironmentDecidesOnColor) {
  ::setenv("TERM", "dumb", 1);
  EXPECT_FALSE(log_options_from_environment().terminal);
  ::setenv("TERM", "xterm", 1);
  ::setenv("NO_COLOR", "1", 1);
  EXPECT_FALSE(log_options_from_environment().color);
  EXPECT_EQ(log_options_from_environment().stream, stderr);
}

}  // namespace
}  // namespace xce

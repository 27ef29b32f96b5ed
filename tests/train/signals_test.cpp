#include "src/train/signals.h"

#include <gtest/gtest.h>

#include <csignal>

namespace xce {
namespace {

volatile std::sig_atomic_t g_former_handler_ran = 0;
void former_handler(int) {
  g_former_handler_ran = 1;
}

TEST(StopSignals, EachOfTheThreeSetsTheFlag) {
  for (int number : {SIGUSR1, SIGTERM, SIGINT}) {
    StopSignals signals;
    EXPECT_EQ(StopSignals::received(), 0) << "a new one starts afresh";
    std::raise(number);
    EXPECT_EQ(StopSignals::received(), number);
  }
}

TEST(StopSignals, RestoresTheFormerHandlers) {
  std::signal(SIGUSR1, former_handler);
  {
    StopSignals signals;
    std::raise(SIGUSR1);
    EXPECT_EQ(g_former_handler_ran, 0);
  }
  std::raise(SIGUSR1);
  EXPECT_EQ(g_former_handler_ran, 1);
  std::signal(SIGUSR1, SIG_DFL);
}

TEST(StopSignalsDeathTest, ASecondSignalOfAKindEndsTheProcess) {
  EXPECT_EXIT(
      {
        StopSignals signals;
        std::raise(SIGUSR1);
        std::raise(SIGTERM);
        std::raise(SIGTERM);
      },
      ::testing::KilledBySignal(SIGTERM), "");
}

}  // namespace
}  // namespace xce

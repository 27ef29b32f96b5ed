#include "src/train/signals.h"

#include <csignal>

#include <array>
#include <atomic>

namespace xce {
namespace {

constexpr std::array<int, 3> kSignals = {SIGINT, SIGTERM, SIGUSR1};
std::atomic<int> g_received{0};
static_assert(std::atomic<int>::is_always_lock_free);
std::array<struct sigaction, kSignals.size()> g_former;

void on_signal(int number) {
  g_received.store(number);
}

}  // namespace

StopSignals::StopSignals() {
  g_received = 0;
  struct sigaction action {};
  action.sa_handler = on_signal;
  action.sa_flags = static_cast<int>(SA_RESETHAND | SA_RESTART);  // the second signal of a kind has its default effect
  for (size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &action, &g_former[i]);
}

StopSignals::~StopSignals() {
  for (size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &g_former[i], nullptr);
}

int StopSignals::received() {
  return g_received.load();
}

}  // namespace xce

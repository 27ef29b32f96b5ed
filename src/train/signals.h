// SIGINT, SIGTERM and SIGUSR1 ask a run to save and stop; a second one while it does so ends the process at once.
#pragma once

namespace xce {

// Installs handlers that only set a flag, and restores the former ones on destruction. One at a time.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  static int received();  // the signal's number, 0: none so far
};

}  // namespace xce

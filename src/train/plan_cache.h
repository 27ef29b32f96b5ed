// Where a GPU's choices of algorithms are kept: in the run's directory, so that a resumed run computes the same bits,
// and in the user's cache, so that the next run starts at once. The run's own win.
#pragma once

#include <filesystem>

#include "src/core/device.h"

namespace xce {

enum class UserCache {
  kUse,
  kLeave,  // a run that does not race neither takes nor gives what was raced
};

// Reads both, where they exist. A file of another GPU or library is passed over: with a log line, for the run's own a
// warning. A damaged one of the run is kCorrupt, of the cache a warning.
void load_plans(Device& device, const std::filesystem::path& run_directory, UserCache cache);
// Writes every choice into the run's directory, raced ones into the cache. A cache that cannot be written is a warning.
void save_plans(Device& device, const std::filesystem::path& run_directory, UserCache cache);

// $XDG_CACHE_HOME/xce, else $HOME/.cache/xce, else empty.
std::filesystem::path user_cache_directory();

}  // namespace xce

// Where a GPU's choices of algorithms are kept: in the run's directory, so that a resumed run computes the same bits,
// and in the user's cache, so that the next run starts at once. The run's own win.
#pragma once

#include <filesystem>

#include "src/core/device.h"

namespace xce {

// Reads both, where they exist; a file of another GPU or library is passed over with a log line, a damaged one of the
// run is kCorrupt.
void load_plans(Device& device, const std::filesystem::path& run_directory);
// Writes both. A cache that cannot be written is a log line.
void save_plans(Device& device, const std::filesystem::path& run_directory);

// $XDG_CACHE_HOME/xce, else $HOME/.cache/xce, else empty.
std::filesystem::path user_cache_directory();

}  // namespace xce

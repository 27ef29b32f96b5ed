// Stands in for a profiler: what NVTX reports in this process, as text. Only in builds with CUDA, where linking it is
// enough; no GPU is needed.
#pragma once

#include <string>

namespace xce::test {

// Since the last call: "name( " where a range begins and ") " where one ends.
std::string take_nvtx_ranges();

}  // namespace xce::test

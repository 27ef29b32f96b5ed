// Names for stretches of host time, which a profiler shows above the kernels launched in them. With CUDA they are NVTX
// ranges, free while no profiler listens; without it nothing. CMake chooses the file that implements it.
#pragma once

#include <string>

namespace xce {

// From construction to destruction, nested per thread: ranges of one thread end in the opposite order of their begin.
// A replayed graph shows its kernels alone: ranges tell of eager launches and of the capture.
class TraceRange {
 public:
  explicit TraceRange(const char* name);
  explicit TraceRange(const std::string& name) : TraceRange(name.c_str()) {}
  ~TraceRange();
  TraceRange(const TraceRange&) = delete;
  TraceRange& operator=(const TraceRange&) = delete;
};

}  // namespace xce

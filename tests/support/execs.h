// The devices a test body runs on. CPU tests run with one and with three threads, so that partitions are uneven.
#pragma once

#include <vector>

#include "kernels/base/exec.h"
#include "kernels/cpu/parallel.h"
#include "tests/support/device.h"

namespace xce::test {

inline CpuExec cpu_exec(int threads) {
  static ThreadPool one(1), two(2), three(3);
  return CpuExec{threads == 1 ? &one : threads == 2 ? &two : &three};
}
inline std::vector<Exec> cpu_execs() {
  return {cpu_exec(1), cpu_exec(3)};
}
// The CPU's and, where there is one, the GPU.
inline std::vector<Exec> all_execs() {
  std::vector<Exec> execs = cpu_execs();
  execs.insert(execs.end(), gpu_execs().begin(), gpu_execs().end());
  return execs;
}

}  // namespace xce::test

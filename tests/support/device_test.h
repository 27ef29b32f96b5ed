// Tests with a device as parameter: TEST_P over device_names(), exec() is the device.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/support/execs.h"

namespace xce::test {

class DeviceTest : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (on_gpu() && gpu_execs().empty()) GTEST_SKIP() << "needs a GPU";
  }
  bool on_gpu() const { return GetParam() == "gpu"; }
  // Of the CPU three threads: uneven shares.
  Exec exec() const { return on_gpu() ? gpu_execs()[0] : cpu_exec(3); }
  // One thread: for calls cut so small that several would mostly wait for each other.
  Exec one_thread() const { return on_gpu() ? gpu_execs()[0] : cpu_exec(1); }
  // Three threads every fourth time, else one: where other programs want the cores, threads wait for each other longer
  // than they compute.
  Exec exec_by_turns() const { return turn_++ % 4 == 0 ? exec() : one_thread(); }

 private:
  mutable int turn_ = 0;
};

inline std::vector<std::string> device_names() {
#ifdef XCE_WITH_CUDA
  return {"cpu", "gpu"};
#else
  return {"cpu"};
#endif
}
inline std::string device_name(const ::testing::TestParamInfo<std::string>& info) {
  return info.param;
}

}  // namespace xce::test

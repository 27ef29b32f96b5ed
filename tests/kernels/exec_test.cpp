// run and workspace_bytes choose the overload of the device that the Exec holds.
#include <gtest/gtest.h>

#include <cstddef>

#include "kernels/base/exec.h"
#include "kernels/cpu/parallel.h"

namespace xce {
namespace {

struct Probe {
  int* launches;
  ThreadPool** pool;
  int64_t size;
};
void launch(const CpuExec& exec, const Probe& args) {
  ++*args.launches;
  *args.pool = exec.pool;
}
size_t workspace_bytes(const CpuExec& exec, const Probe& args) {
  return args.size * exec.pool->size();
}

TEST(Exec, RunLaunchesOnceOnTheHeldDevice) {
  ThreadPool pool(2), other(1);
  int launches = 0;
  ThreadPool* seen = nullptr;
  run(Exec(CpuExec{&pool}), Probe{&launches, &seen, 0});
  EXPECT_EQ(launches, 1);
  EXPECT_EQ(seen, &pool);
  run(Exec(CpuExec{&other}), Probe{&launches, &seen, 0});
  EXPECT_EQ(launches, 2);
  EXPECT_EQ(seen, &other);
}

TEST(Exec, WorkspaceIsAskedOfTheHeldDevice) {
  ThreadPool pool(3);
  int launches = 0;
  EXPECT_EQ(workspace_bytes(Exec(CpuExec{&pool}), Probe{&launches, nullptr, 5}), 15u);
  EXPECT_EQ(launches, 0);
}

}  // namespace
}  // namespace xce

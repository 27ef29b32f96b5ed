// What needs CUDA's types but no GPU: an op without a CUDA kernel, and devices that are not there.
#include <gtest/gtest.h>

#include "kernels/base/exec.h"
#include "tests/support/errors.h"

namespace xce {
namespace {

struct CpuOnly {};
void launch(const CpuExec&, const CpuOnly&) {}
size_t workspace_bytes(const CpuExec&, const CpuOnly&) {
  return 7;
}

struct Both {
  int* launches;
};
void launch(const CpuExec&, const Both&) {}
void launch(const CudaExec&, const Both& args) {
  ++*args.launches;
}

TEST(CudaExec, RunLaunchesTheCudaKernel) {
  int launches = 0;
  run(Exec(CudaExec{}), Both{&launches});
  EXPECT_EQ(launches, 1);
  run(Exec(CpuExec{}), Both{&launches});
  EXPECT_EQ(launches, 1);
}

TEST(CudaExec, AnOpWithoutCudaKernelSaysSo) {
  const Exec gpu = CudaExec{}, cpu = CpuExec{};
  EXPECT_TRUE(test::throws_error(ErrorCode::kRuntime, {"no CUDA kernel"}, [&] { run(gpu, CpuOnly{}); }));
  EXPECT_TRUE(test::throws_error(ErrorCode::kRuntime, {"no CUDA kernel"}, [&] { workspace_bytes(gpu, CpuOnly{}); }));
  EXPECT_NO_THROW(run(cpu, CpuOnly{}));
  EXPECT_EQ(workspace_bytes(cpu, CpuOnly{}), 7u);
}

TEST(CudaDevice, RefusesADeviceThatIsNotThere) {
  for (int index : {-1, CudaDevice::count(), CudaDevice::count() + 5})
    EXPECT_TRUE(test::throws_error(ErrorCode::kRuntime, {"CUDA device", str("got ", index)},
                                   [&] { CudaDevice device(index); }));
}

}  // namespace
}  // namespace xce

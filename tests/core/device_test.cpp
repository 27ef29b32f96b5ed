#include "src/core/device.h"

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <vector>

#include "kernels/base/check.h"
#include "kernels/elementwise.h"
#include "src/core/buffer.h"
#include "tests/support/errors.h"
#include "tests/support/run_device.h"

namespace xce {
namespace {

// The CPU, and where there is a GPU that with its own memory and with pinned arrays.
std::vector<std::unique_ptr<Device>> devices() {
  std::vector<std::unique_ptr<Device>> all;
  all.push_back(make_cpu_device(2));
  if (cuda_device_count() > 0)
    for (bool host_arrays : {false, true}) all.push_back(make_cuda_device({.host_arrays = host_arrays}));
  return all;
}

std::vector<float> values(Device& device, const Buffer& buffer) {
  std::vector<float> out(buffer.size_bytes() / sizeof(float));
  device.memory().copy_out(out.data(), buffer.data(), buffer.size_bytes());
  return out;
}

TEST(Device, MemoryIsZeroedAndKeepsWhatIsCopiedIn) {
  for (auto& device : devices()) {
    Buffer a(4000, device->memory());
    EXPECT_EQ(values(*device, a), std::vector<float>(1000, 0.0f)) << device->describe();
    std::vector<float> want(1000);
    std::iota(want.begin(), want.end(), 1.0f);
    device->memory().copy_in(a.data(), want.data(), a.size_bytes());
    EXPECT_EQ(values(*device, a), want);
    device->memory().set_bytes(a.as<float>() + 10, 0xFF, sizeof(float));
    std::vector<float> got = values(*device, a);
    EXPECT_NE(got[10], got[10]) << "0xFF in every byte is a NaN";
    EXPECT_EQ(got[9], 10.0f);
    EXPECT_EQ(got[11], 12.0f);
    HostCopy copy(device->memory(), a.as<float>() + 11, 8);
    EXPECT_EQ(static_cast<const float*>(copy.data())[1], 13.0f);
  }
}

// y grows by x at each replay; x comes by uploads while earlier replays run, y leaves by downloads.
TEST(Device, RecordedWorkSeesUploadsInOrderAndDownloadsSeeItsResult) {
  constexpr int64_t kN = 100000;
  constexpr int kTimes = 12, kSlots = 3;
  for (auto& device : devices())
    for (bool eager : {false, true}) {
      const size_t bytes = kN * sizeof(float);
      Buffer x(bytes, device->memory()), y(bytes, device->memory());
      Buffer from(kSlots * bytes, device->staging()), to(kSlots * bytes, device->staging());
      auto work = [&] {
        run(device->exec(), Add{.a = x.data(), .b = y.data(), .y = y.data(), .n = kN, .dtype = DType::kF32});
      };
      work();
      device->synchronize();
      auto recording = eager ? device->record_eager(work) : device->record(work);
      std::vector<std::unique_ptr<Mark>> marks;
      std::vector<float> firsts, lasts;
      auto land = [&](int i) {
        marks[static_cast<size_t>(i)]->wait();
        EXPECT_TRUE(marks[static_cast<size_t>(i)]->reached());
        firsts.push_back(to.as<float>()[i % kSlots * kN]);
        lasts.push_back(to.as<float>()[i % kSlots * kN + kN - 1]);
      };
      for (int i = 0; i < kTimes; ++i) {
        if (i >= kSlots) land(i - kSlots);
        float* slot = from.as<float>() + i % kSlots * kN;
        std::fill(slot, slot + kN, static_cast<float>(i + 1));
        // A single destination: the upload of step i must not overtake the work of step i - 1.
        marks.size() ? marks.back()->wait() : void();
        device->upload(x.data(), slot, bytes);
        recording->replay();
        marks.push_back(device->download(to.as<float>() + i % kSlots * kN, y.data(), bytes));
      }
      for (int i = kTimes - kSlots; i < kTimes; ++i) land(i);
      std::vector<float> want;
      for (int i = 0; i < kTimes; ++i) want.push_back(static_cast<float>((i + 1) * (i + 2) / 2));
      EXPECT_EQ(firsts, want) << device->describe() << (eager ? " eager" : " recorded");
      EXPECT_EQ(lasts, want);
      EXPECT_GE(marks.back()->ms_since(*marks.front()), 0);
    }
}

TEST(Device, AWorkThatThrowsWhileRecordedLeavesTheDeviceUsable) {
  for (auto& device : devices()) {
    Buffer a(400, device->memory());
    bool recording_runs_work = false;
    try {
      auto recording = device->record([&] {
        recording_runs_work = true;
        throw Error(ErrorCode::kRuntime, "not today");
      });
      recording->replay();
      ADD_FAILURE() << "nothing thrown";
    } catch (const Error& e) {
      EXPECT_STREQ(e.what(), "not today");
    }
    EXPECT_TRUE(recording_runs_work);
    run(device->exec(), Fill{.y = a.data(), .n = 100, .dtype = DType::kF32, .value = 2});
    device->synchronize();
    EXPECT_EQ(values(*device, a), std::vector<float>(100, 2.0f));
  }
}

TEST(Device, AGpuThatIsNotThereIsAnErrorThatSaysWhatHelps) {
  if (cuda_device_count() > 0) GTEST_SKIP() << "there is one";
  EXPECT_TRUE(test::throws_error(ErrorCode::kUsage, {"GPU", "configs/demo-cpu.yaml"}, [] { make_cuda_device(); }));
}

TEST(Device, PlansNeedNoGpu) {
  if (!cuda_is_built()) GTEST_SKIP() << "needs a build with CUDA";
  auto device = make_planning_device();
  EXPECT_NE(device->describe().find("no GPU"), std::string::npos);
  EXPECT_TRUE(test::throws_error(ErrorCode::kRuntime, {"only plans"}, [&] { device->memory(); }));
}

}  // namespace
}  // namespace xce

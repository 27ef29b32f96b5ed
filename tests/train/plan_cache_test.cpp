#include "src/train/plan_cache.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "kernels/base/check.h"
#include "src/core/file.h"
#include "tests/support/errors.h"
#include "tests/support/temp_dir.h"

namespace xce {
namespace {

// Says what it was given; nothing else of a device is asked for.
class Listener final : public Device {
 public:
  std::vector<std::string> loaded;
  std::string text = "choices";
  bool damaged = false;

  bool asynchronous() const override { return true; }
  std::string plans_text() const override { return text; }
  std::string raced_plans_text() const override { return "raced " + text; }
  std::string load_plans(const std::string& plans, const std::string& source) override {
    if (damaged) throw Error(ErrorCode::kCorrupt, source + ": damaged");
    loaded.push_back(plans);
    return plans == "foreign" ? "of another GPU" : "";
  }

  const Exec& exec() const override { return refuse<const Exec&>(); }
  Memory& memory() override { return host_memory(); }
  Memory& staging() override { return host_memory(); }
  std::string describe() const override { return "listener"; }
  double peak_flops(DType) const override { return 0; }
  size_t used_bytes() const override { return 0; }
  size_t fixed_bytes() const override { return 0; }
  std::unique_ptr<Recording> record(std::function<void()>) override { return nullptr; }
  void upload(void*, const void*, size_t) override {}
  std::unique_ptr<Mark> download(void*, const void*, size_t) override { return nullptr; }
  std::unique_ptr<Mark> mark() override { return nullptr; }
  void synchronize() override {}

 private:
  template <class T>
  static T refuse() {
    throw Error(ErrorCode::kRuntime, "not asked for");
  }
};

class PlanCacheTest : public ::testing::Test {
 protected:
  PlanCacheTest() {
    setenv("XDG_CACHE_HOME", (dir_.path() / "cache").c_str(), 1);
    make_directories(run_);
  }
  ~PlanCacheTest() override { unsetenv("XDG_CACHE_HOME"); }
  test::TempDir dir_;
  std::filesystem::path run_ = dir_ / "run";
};

TEST_F(PlanCacheTest, NothingIsThereAtFirst) {
  Listener device;
  load_plans(device, run_, UserCache::kUse);
  EXPECT_TRUE(device.loaded.empty());
}

TEST_F(PlanCacheTest, WhatIsSavedIsLoadedTheRunsOwnLast) {
  Listener device;
  save_plans(device, run_, UserCache::kUse);
  device.text = "choices of another run";
  make_directories(dir_ / "other");
  save_plans(device, dir_ / "other", UserCache::kUse);
  load_plans(device, run_, UserCache::kUse);
  EXPECT_EQ(device.loaded, (std::vector<std::string>{"raced choices of another run", "choices"}));
}

TEST_F(PlanCacheTest, ARunThatDoesNotRaceLeavesTheCacheAlone) {
  Listener device;
  save_plans(device, run_, UserCache::kLeave);
  EXPECT_FALSE(path_exists(dir_ / "cache"));
  make_directories(dir_ / "other");
  save_plans(device, dir_ / "other", UserCache::kUse);
  load_plans(device, run_, UserCache::kLeave);
  EXPECT_EQ(device.loaded, std::vector<std::string>{"choices"});
}

TEST_F(PlanCacheTest, ADeviceWithoutChoicesLeavesNoFile) {
  Listener device;
  device.text = "";
  save_plans(device, run_, UserCache::kUse);
  EXPECT_TRUE(std::filesystem::is_empty(run_));
  EXPECT_FALSE(path_exists(dir_ / "cache"));
}

TEST_F(PlanCacheTest, DamageInTheCacheIsPassedOverInTheRunItIsAnError) {
  Listener device;
  save_plans(device, run_, UserCache::kUse);
  device.damaged = true;
  EXPECT_TRUE(
      test::throws_error(ErrorCode::kCorrupt, {"run", "damaged"}, [&] { load_plans(device, run_, UserCache::kUse); }));
  EXPECT_NO_THROW(load_plans(device, dir_ / "no-such-run", UserCache::kUse));
}

TEST_F(PlanCacheTest, ACacheThatCannotBeWrittenIsNoError) {
  write_text_file(dir_ / "cache", "a file where a directory should be");
  Listener device;
  EXPECT_NO_THROW(save_plans(device, run_, UserCache::kUse));
  load_plans(device, run_, UserCache::kUse);
  EXPECT_EQ(device.loaded.back(), "choices");
}

}  // namespace
}  // namespace xce

#include "src/train/training_state.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "kernels/base/check.h"
#include "tests/support/errors.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_step.h"

namespace xce {
namespace {

using test::TinyStep;

class TrainingStateTest : public ::testing::Test {
 protected:
  test::TempDir dir_;
  static void run(TinyStep& s, uint64_t first, uint64_t last) {
    for (uint64_t i = first; i < last; ++i) s.run(s.batch(i));
  }
  static void skipped_step(TinyStep& s) {
    s.accumulate(s.batch(50));
    test::TapeRig::write(s.tiny.parameters.grad(), s.tiny.accum(), {std::numeric_limits<double>::quiet_NaN()}, false);
    s.step.update();
  }
};

TEST_F(TrainingStateTest, AResumedRunContinuesBitForBit) {
  for (DType dtype : {DType::kF32, DType::kBf16, DType::kF64}) {
    TinyStep straight(dtype, test::tiny_settings(1, 2)), saved(dtype, test::tiny_settings(1, 2)),
        resumed(dtype, test::tiny_settings(1, 2), false, 99);
    for (TinyStep* s : {&straight, &saved}) {
      run(*s, 0, 3);
      skipped_step(*s);
    }
    auto path = save_training_state(dir_.path(), 1, {"config", 7}, saved.step, saved.tiny.parameters);
    run(resumed, 20, 22);  // another past
    resumed.step.set_state(load_training_state(CheckpointReader(path), resumed.tiny.parameters, resumed.device.exec()));
    EXPECT_EQ(resumed.weights(), saved.weights());
    EXPECT_EQ(resumed.step.state().step, 4);
    EXPECT_EQ(resumed.step.state().updates, 3);
    EXPECT_EQ(resumed.step.state().skipped, 1);
    run(straight, 4, 7);
    run(resumed, 4, 7);
    EXPECT_EQ(resumed.weights(), straight.weights()) << name_of(dtype);
    EXPECT_EQ(resumed.step.state().loss, straight.step.state().loss);
    EXPECT_EQ(resumed.step.state().lr, straight.step.state().lr);
    EXPECT_EQ(resumed.step.state().step, straight.step.state().step);
  }
}

TEST_F(TrainingStateTest, MetaComesBack) {
  TinyStep s(DType::kF32, test::tiny_settings());
  const TrainingMeta meta{"run:\n  dir: \"é\"\n", 0xFEDCBA9876543210ull};
  run(s, 0, 2);
  auto path = save_training_state(dir_.path(), 1, meta, s.step, s.tiny.parameters);
  CheckpointReader reader(path);
  EXPECT_EQ(reader.step(), 2);
  EXPECT_EQ(read_training_meta(reader).config_yaml, meta.config_yaml);
  EXPECT_EQ(read_training_meta(reader).data_fingerprint, meta.data_fingerprint);
}

TEST_F(TrainingStateTest, OtherArraysAndMissingKeysAreCorrupt) {
  TinyStep s(DType::kF32, test::tiny_settings()), wider(DType::kF64, test::tiny_settings());
  auto path = save_training_state(dir_ / "sizes", 1, {"", 0}, s.step, s.tiny.parameters);
  EXPECT_TRUE(test::throws_error(ErrorCode::kCorrupt, {"master"}, [&] {
    load_training_state(CheckpointReader(path), wider.tiny.parameters, wider.device.exec());
  }));
  CheckpointWriter keyless(dir_ / "keys", 5);
  keyless.set_state({{"step", 5}, {"updates", "five"}});
  CheckpointReader reader(keyless.commit(1));
  EXPECT_TRUE(test::throws_error(ErrorCode::kCorrupt, {"updates"},
                                 [&] { load_training_state(reader, s.tiny.parameters, s.device.exec()); }));
  EXPECT_TRUE(test::throws_error(ErrorCode::kCorrupt, {"config"}, [&] { read_training_meta(reader); }));
}

}  // namespace
}  // namespace xce

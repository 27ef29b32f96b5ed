#include "src/io/checkpoint.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cctype>
#include <csignal>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "tests/support/errors.h"
#include "tests/support/temp_dir.h"

namespace xce {
namespace {

using test::throws_error;

std::vector<float> values(int64_t count, float first) {
  std::vector<float> out(count);
  std::iota(out.begin(), out.end(), first);
  return out;
}

std::filesystem::path save(const std::filesystem::path& root, int64_t step, int64_t keep = 0, float first = 1) {
  CheckpointWriter writer(root, step);
  auto master = values(1000, first);
  writer.add("master.bin", master.data(), master.size() * sizeof(float));
  writer.add("moments.bin", [&](const CheckpointWriter::Sink& sink) {
    for (float value : master) sink(&value, sizeof value);
  });
  writer.set_state({{"updates", step - 1}, {"loss", 2.5}});
  return writer.commit(keep);
}

std::vector<int64_t> steps(const std::filesystem::path& root) {
  std::vector<int64_t> found;
  for (int64_t step = 0; step < 1000; ++step)
    if (std::filesystem::exists(root / ("step-" + std::to_string(step)))) found.push_back(step);
  return found;
}

TEST(Checkpoint, RoundTrip) {
  test::TempDir dir;
  auto path = save(dir / "run/checkpoints", 100);
  EXPECT_EQ(path, dir / "run/checkpoints/step-100");
  EXPECT_EQ(test::count_entries(dir / "run/checkpoints"), 1u);
  CheckpointReader reader(path);
  reader.verify();
  EXPECT_EQ(reader.step(), 100);
  EXPECT_EQ(reader.state()["updates"], 99);
  EXPECT_EQ(reader.bytes("master.bin"), 4000u);
  EXPECT_FALSE(reader.has("other"));
  for (const char* name : {"master.bin", "moments.bin"}) {
    std::vector<float> got(1000, -1), part(3, -1);
    reader.read(name, got.data(), 4000);
    EXPECT_EQ(got, values(1000, 1)) << name;
    reader.read_range(name, 40, part.data(), 12);
    EXPECT_EQ(part, values(3, 11));
  }
  EXPECT_TRUE(throws_error(ErrorCode::kCorrupt, {"manifest.json", "no file other"}, [&] { reader.bytes("other"); }));
  float out[1];
  EXPECT_TRUE(
      throws_error(ErrorCode::kCorrupt, {"master.bin", "4000", "4"}, [&] { reader.read("master.bin", out, 4); }));
  EXPECT_TRUE(
      throws_error(ErrorCode::kRuntime, {"master.bin"}, [&] { reader.read_range("master.bin", 3998, out, 4); }));
}

TEST(Checkpoint, EmptyBlobsAndNoState) {
  test::TempDir dir;
  CheckpointWriter writer(dir.path(), 0);
  writer.add("none", nullptr, 0);
  CheckpointReader reader(writer.commit(1));
  reader.verify();
  EXPECT_EQ(reader.bytes("none"), 0u);
  EXPECT_TRUE(reader.state().empty());
}

TEST(Checkpoint, AnUncommittedWriterLeavesNothing) {
  test::TempDir dir;
  {
    CheckpointWriter writer(dir.path(), 3);
    writer.add("a", "xyz", 3);
    EXPECT_EQ(test::count_entries(dir.path()), 1u);
    EXPECT_FALSE(latest_checkpoint(dir.path()).latest.has_value());
  }
  EXPECT_EQ(test::count_entries(dir.path()), 0u);
}

TEST(Checkpoint, TheSameStepIsReplaced) {
  test::TempDir dir;
  save(dir.path(), 5, 0, 1);
  auto path = save(dir.path(), 5, 0, 7);
  EXPECT_EQ(test::count_entries(dir.path()), 1u);
  std::vector<float> got(1000);
  CheckpointReader(path).read("master.bin", got.data(), 4000);
  EXPECT_EQ(got, values(1000, 7));
}

TEST(Checkpoint, KeepsTheLast) {
  test::TempDir dir;
  for (int64_t step : {9, 10, 11}) save(dir.path(), step);
  EXPECT_EQ(steps(dir.path()), (std::vector<int64_t>{9, 10, 11}));
  save(dir.path(), 100, 2);
  EXPECT_EQ(steps(dir.path()), (std::vector<int64_t>{11, 100}));
  save(dir.path(), 50, 1);  // an older step, just written, stays
  EXPECT_EQ(steps(dir.path()), (std::vector<int64_t>{50, 100}));
  EXPECT_EQ(test::count_entries(dir.path()), 2u);
  EXPECT_EQ(latest_checkpoint(dir.path()).latest->step, 100);
}

TEST(Checkpoint, LatestPassesOverUnfinishedDirectories) {
  test::TempDir dir;
  EXPECT_FALSE(latest_checkpoint(dir / "nowhere").latest.has_value());
  save(dir.path(), 20);
  for (const char* name : {"step-30", ".tmp-step-40-1-a", "step-x", "step-050", "notes"})
    std::filesystem::create_directories(dir / name);
  test::write_file(dir / "step-30/master.bin", "half");
  CheckpointSearch search = latest_checkpoint(dir.path());
  ASSERT_TRUE(search.latest.has_value());
  EXPECT_EQ(search.latest->step, 20);
  EXPECT_EQ(search.latest->path, dir / "step-20");
  ASSERT_EQ(search.warnings.size(), 2u);
  EXPECT_NE(search.warnings[0].find(".tmp-step-40"), std::string::npos);
  EXPECT_NE(search.warnings[1].find("step-30"), std::string::npos);
  remove_unfinished(dir.path());
  EXPECT_TRUE(latest_checkpoint(dir.path()).warnings.empty());
  EXPECT_EQ(test::count_entries(dir.path()), 4u);  // step-20 and what is not ours
}

TEST(Checkpoint, DamageIsNamed) {
  test::TempDir dir;
  auto path = save(dir.path(), 7);
  auto damaged = [&](const std::string& name, const std::function<void(std::string&)>& change,
                     const std::vector<std::string>& words) {
    std::string good = test::read_file(path / name), bad = good;
    change(bad);
    test::write_file(path / name, bad);
    auto all = words;
    all.push_back((path / name).native());
    auto result = throws_error(ErrorCode::kCorrupt, all, [&] { CheckpointReader(path).verify(); });
    test::write_file(path / name, good);
    return result;
  };
  CheckpointReader(path).verify();
  EXPECT_TRUE(damaged("master.bin", [](auto& s) { s[1234] ^= 1; }, {"checksum"}));
  EXPECT_TRUE(damaged("moments.bin", [](auto& s) { s.back() ^= 64; }, {"checksum"}));
  EXPECT_TRUE(damaged("master.bin", [](auto& s) { s.pop_back(); }, {"3999 bytes", "4000"}));
  EXPECT_TRUE(damaged("master.bin", [](auto& s) { s += "x"; }, {"4001 bytes", "4000"}));
  EXPECT_TRUE(damaged("state.json", [](auto& s) { s[3] ^= 1; }, {"checksum"}));
  EXPECT_TRUE(damaged("manifest.json", [](auto& s) { s.resize(s.size() / 2); }, {"not JSON"}));
  EXPECT_TRUE(damaged("manifest.json", [](auto& s) { s.clear(); }, {"not JSON"}));
  EXPECT_TRUE(
      damaged("manifest.json", [](auto& s) { s.replace(s.find("\"step\": 7"), 9, "\"step\": 8"); }, {"step 8", "7"}));
  EXPECT_TRUE(damaged("manifest.json", [](auto& s) { s.replace(s.find("xce-check"), 9, "abc-check"); }, {"manifest"}));
  EXPECT_TRUE(damaged("manifest.json", [](auto& s) { s.replace(s.find("\"version\": 1"), 12, "\"version\": 2"); },
                      {"version 2"}));
  std::string manifest = test::read_file(path / "manifest.json");
  for (size_t at = 0; at < manifest.size(); ++at) {  // no flipped byte goes unnoticed
    std::string bad = manifest;
    if (std::isspace(static_cast<unsigned char>(bad[at]))) continue;
    bad[at] = static_cast<char>(bad[at] ^ 0x10);
    test::write_file(path / "manifest.json", bad);
    EXPECT_TRUE(throws_error(ErrorCode::kCorrupt, {path.native()}, [&] { CheckpointReader(path).verify(); })) << bad;
  }
  test::write_file(path / "manifest.json", manifest);
  std::filesystem::remove(path / "moments.bin");
  EXPECT_TRUE(throws_error(ErrorCode::kCorrupt, {"moments.bin", "not there"}, [&] { CheckpointReader reader(path); }));
}

TEST(Checkpoint, AFailingDiskIsNamedAndLeavesTheOlderCheckpoint) {
  test::TempDir dir;
  save(dir.path(), 1);
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit before{}, small{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  small = before;
  small.rlim_cur = 2048;  // stands in for a full disk
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  auto result =
      throws_error(ErrorCode::kDisk, {"master.bin", "write", "File too large"}, [&] { save(dir.path(), 2, 1); });
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_TRUE(result);
  EXPECT_EQ(test::count_entries(dir.path()), 1u);
  CheckpointReader(dir / "step-1").verify();
  test::write_file(dir / "file", "");
  EXPECT_TRUE(throws_error(ErrorCode::kDisk, {"file"}, [&] { CheckpointWriter writer(dir / "file", 1); }));
}

TEST(Checkpoint, WriterRefusesWrongUse) {
  test::TempDir dir;
  CheckpointWriter writer(dir.path(), 1);
  writer.add("a", "x", 1);
  for (const char* name : {"a", "", ".hidden", "../up", "a/b", "manifest.json", "a b", "ä"})
    EXPECT_TRUE(throws_error(ErrorCode::kRuntime, {name}, [&] { writer.add(name, "x", 1); })) << name;
  EXPECT_TRUE(throws_error(ErrorCode::kRuntime, {"object"}, [&] { writer.set_state(3); }));
  EXPECT_TRUE(throws_error(ErrorCode::kRuntime, {"step", "-1"}, [&] { CheckpointWriter bad(dir.path(), -1); }));
  writer.commit(0);
  EXPECT_TRUE(throws_error(ErrorCode::kRuntime, {"commit"}, [&] { writer.add("b", "x", 1); }));
}

}  // namespace
}  // namespace xce

#include "src/data/source.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "src/data/token_file.h"
#include "tests/support/errors.h"
#include "tests/support/temp_dir.h"

namespace xce {
namespace {

using test::throws_error;

std::vector<int32_t> read(const TokenSource& source, int64_t offset, int64_t count) {
  std::vector<int32_t> ids(count, -1);
  source.read(offset, ids);
  return ids;
}

TEST(BytesSource, EveryByteValueAndLongReads) {
  test::TempDir dir;
  std::string text(50000, '\0');
  for (size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>(i * 7 + i / 256);
  test::write_file(dir / "text", text);
  auto source = open_bytes(dir / "text");
  ASSERT_EQ(source->size(), 50000);
  EXPECT_EQ(source->vocab_size(), 256);
  auto ids = read(*source, 0, 50000);
  for (size_t i = 0; i < text.size(); ++i) ASSERT_EQ(ids[i], static_cast<unsigned char>(text[i])) << i;
  EXPECT_EQ(read(*source, 49990, 10), std::vector<int32_t>(ids.end() - 10, ids.end()));
  EXPECT_TRUE(read(*source, 50000, 0).empty());
}

TEST(BytesSource, Errors) {
  test::TempDir dir;
  EXPECT_TRUE(throws_error(ErrorCode::kUsage, {"no.txt", "No such file"}, [&] { open_bytes(dir / "no.txt"); }));
  test::write_file(dir / "empty.txt", "");
  EXPECT_TRUE(throws_error(ErrorCode::kCorrupt, {"empty.txt", "empty"}, [&] { open_bytes(dir / "empty.txt"); }));
  test::write_file(dir / "a", "abc");
  auto source = open_bytes(dir / "a");
  for (auto [offset, count] : {std::pair{0, 4}, {3, 1}, {-1, 1}, {4, 0}})
    EXPECT_TRUE(throws_error(ErrorCode::kRuntime, {"[0, 3)"}, [&] { read(*source, offset, count); })) << offset;
}

TEST(BytesSource, FingerprintFollowsTheContent) {
  test::TempDir dir;
  std::string text(200000, 'x');
  test::write_file(dir / "a", text);
  test::write_file(dir / "b", text);
  text[123456] = 'y';
  test::write_file(dir / "c", text);
  test::write_file(dir / "d", text + 'x');
  uint64_t a = open_bytes(dir / "a")->fingerprint();
  EXPECT_EQ(a, open_bytes(dir / "b")->fingerprint());
  EXPECT_NE(a, open_bytes(dir / "c")->fingerprint());
  EXPECT_NE(open_bytes(dir / "c")->fingerprint(), open_bytes(dir / "d")->fingerprint());
}

// More than 256 blocks of 64 KiB: only some are read, the first and the last among them.
TEST(BytesSource, FingerprintOfALargeFileSeesItsEnds) {
  test::TempDir dir;
  std::string text((17u << 20) + 5, 'x');
  test::write_file(dir / "a", text);
  uint64_t a = open_bytes(dir / "a")->fingerprint();
  for (size_t at : {size_t{0}, text.size() - 1}) {
    std::string changed = text;
    changed[at] = 'y';
    test::write_file(dir / "b", changed);
    EXPECT_NE(a, open_bytes(dir / "b")->fingerprint()) << at;
  }
}

TEST(TokensSource, ReadsAFile) {
  test::TempDir dir;
  TokenFileWriter writer(dir / "t.bin", 70000);
  writer.append(std::vector<int32_t>{69999, 0, 65536, 3});
  writer.commit();
  auto source = open_tokens(dir / "t.bin");
  EXPECT_EQ(source->size(), 4);
  EXPECT_EQ(source->vocab_size(), 70000);
  EXPECT_EQ(read(*source, 1, 3), (std::vector<int32_t>{0, 65536, 3}));
}

TEST(SplitSource, ByPositionWithoutOverlap) {
  test::TempDir dir;
  test::write_file(dir / "a", "0123456789abcdefghij!");
  auto source = open_bytes(dir / "a");
  SourceSplit split = split_source(source, 0.1);
  EXPECT_EQ(split.train->size(), 19);
  EXPECT_EQ(split.validation->size(), 2);
  EXPECT_EQ(read(*split.validation, 0, 2), (std::vector<int32_t>{'j', '!'}));
  EXPECT_EQ(read(*split.train, 17, 2), (std::vector<int32_t>{'h', 'i'}));
  EXPECT_TRUE(throws_error(ErrorCode::kRuntime, {"[0, 19)"}, [&] { read(*split.train, 18, 2); }));
  EXPECT_NE(split.train->fingerprint(), split.validation->fingerprint());
}

TEST(SplitSource, Errors) {
  auto source = uniform_source(10, 3, 1);
  for (double fraction : {0.0, 1.0, -0.5, std::numeric_limits<double>::quiet_NaN()})
    EXPECT_TRUE(throws_error(ErrorCode::kUsage, {"fraction"}, [&] { split_source(source, fraction); })) << fraction;
  EXPECT_TRUE(throws_error(ErrorCode::kUsage, {"too few"}, [&] { split_source(source, 0.01); }));
}

TEST(UniformSource, SameAtEveryAccessAndEven) {
  auto source = uniform_source(8, 80000, 3);
  auto all = read(*source, 0, 80000);
  EXPECT_EQ(read(*source, 777, 100), std::vector<int32_t>(all.begin() + 777, all.begin() + 877));
  std::vector<int> counts(8);
  for (int32_t id : all) ++counts.at(id);
  for (int count : counts) EXPECT_NEAR(count, 10000, 500);  // 5 standard deviations
  EXPECT_NE(read(*uniform_source(8, 80000, 4), 0, 100), read(*source, 0, 100));
}

}  // namespace
}  // namespace xce

#include "src/data/token_file.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "tests/support/errors.h"
#include "tests/support/temp_dir.h"

namespace xce {
namespace {

using test::throws_error;

std::vector<int32_t> some_ids(int64_t count, int64_t vocab_size) {
  std::vector<int32_t> ids(count);
  for (int64_t i = 0; i < count; ++i) ids[i] = static_cast<int32_t>(i * i * 31 % vocab_size);
  ids[0] = static_cast<int32_t>(vocab_size - 1);
  return ids;
}

std::string written(const std::filesystem::path& path, const std::vector<int32_t>& ids, int64_t vocab_size) {
  TokenFileWriter writer(path, vocab_size);
  writer.append(std::span(ids).first(ids.size() / 3));
  writer.append(std::span(ids).subspan(ids.size() / 3));
  EXPECT_FALSE(std::filesystem::exists(path));
  writer.commit();
  return test::read_file(path);
}

// The header built by hand from the table in token_file.h.
std::string header(uint32_t id_bytes, uint64_t count, uint64_t vocab_size, const std::string& payload) {
  std::string text(64, '\0');
  uint32_t version = 1;
  uint64_t checksum = xxh64(payload.data(), payload.size());
  std::memcpy(text.data(), "XCETOKEN", 8);
  std::memcpy(text.data() + 8, &version, 4);
  std::memcpy(text.data() + 12, &id_bytes, 4);
  std::memcpy(text.data() + 16, &count, 8);
  std::memcpy(text.data() + 24, &vocab_size, 8);
  std::memcpy(text.data() + 32, &checksum, 8);
  uint64_t own = xxh64(text.data(), 56);
  std::memcpy(text.data() + 56, &own, 8);
  return text;
}

TEST(TokenFile, RoundTripAtEachWidth) {
  test::TempDir dir;
  struct Case {
    int64_t vocab_size;
    int32_t id_bytes;
  };
  for (auto [vocab_size, id_bytes] : {Case{1, 1}, {256, 1}, {257, 2}, {65536, 2}, {65537, 4}, {131072, 4}}) {
    auto path = dir / str("t", vocab_size);
    auto ids = some_ids(40000, vocab_size);
    std::string bytes = written(path, ids, vocab_size);
    EXPECT_EQ(bytes.size(), 64u + 40000u * id_bytes);
    TokenFileReader reader(path);
    EXPECT_EQ(reader.header().count, 40000);
    EXPECT_EQ(reader.header().vocab_size, vocab_size);
    EXPECT_EQ(reader.header().id_bytes, id_bytes);
    reader.verify();
    std::vector<int32_t> got(40000, -1);
    reader.read(0, got);
    EXPECT_EQ(got, ids);
    got.assign(17, -1);
    reader.read(39983, got);
    EXPECT_TRUE(std::equal(got.begin(), got.end(), ids.end() - 17));
  }
}

TEST(TokenFile, LayoutIsTheDocumentedOne) {
  test::TempDir dir;
  std::string bytes = written(dir / "t", {1, 2, 515}, 1000);
  std::string payload("\x01\x00\x02\x00\x03\x02", 6);
  EXPECT_EQ(bytes, header(2, 3, 1000, payload) + payload);
}

TEST(TokenFile, AnUnfinishedWriterLeavesNothing) {
  test::TempDir dir;
  TokenFileWriter(dir / "t", 10).append(std::vector<int32_t>{1, 2});
  EXPECT_EQ(test::count_entries(dir.path()), 0u);
}

TEST(TokenFile, DamageIsNamed) {
  test::TempDir dir;
  std::string good = written(dir / "good", some_ids(100, 300), 300);
  auto refused = [&](const std::string& bytes, const std::vector<std::string>& words) {
    test::write_file(dir / "bad", bytes);
    auto all = words;
    all.push_back((dir / "bad").native());
    return throws_error(ErrorCode::kCorrupt, all, [&] { TokenFileReader(dir / "bad").verify(); });
  };
  EXPECT_TRUE(refused("", {"empty"}));
  EXPECT_TRUE(refused(good.substr(0, 63), {"63 bytes"}));
  EXPECT_TRUE(refused(good.substr(0, good.size() - 1), {"199 bytes", "100 ids"}));
  EXPECT_TRUE(refused(good + "x", {"201 bytes", "100 ids"}));
  EXPECT_TRUE(refused(header(2, 0, 10, ""), {"no tokens"}));
  EXPECT_TRUE(refused(header(3, 2, 10, "abcdef") + "abcdef", {"3 bytes per id"}));
  EXPECT_TRUE(refused(header(1, 2, 0, "ab") + "ab", {"vocabulary 0"}));
  EXPECT_TRUE(refused(header(4, uint64_t{1} << 62, 10, "") + "abcd", {"promised"}));  // count * width wraps to 0
  std::string other = good;
  other[8] = 2;
  EXPECT_TRUE(refused(other, {"version 2"}));
  for (size_t at = 0; at < good.size(); at += at < 64 ? 1 : 9) {
    std::string flipped = good;
    flipped[at] = static_cast<char>(flipped[at] ^ 0x10);
    EXPECT_TRUE(refused(flipped, {})) << "byte " << at;
  }
}

TEST(TokenFile, AnIdOutsideTheVocabularyIsNamedOnReading) {
  test::TempDir dir;
  std::string payload = {1, 9, 10, 3};
  test::write_file(dir / "t", header(1, 4, 10, payload) + payload);
  TokenFileReader reader(dir / "t");
  std::vector<int32_t> ids(2);
  reader.read(0, ids);
  auto words = {(dir / "t").native(), std::string("token 2"), std::string("id 10"), std::string("vocabulary is 10")};
  EXPECT_TRUE(throws_error(ErrorCode::kCorrupt, words, [&] { reader.read(1, ids); }));
  EXPECT_TRUE(throws_error(ErrorCode::kCorrupt, words, [&] { reader.verify(); }));
}

TEST(TokenFile, WriterRefusesForeignIds) {
  test::TempDir dir;
  TokenFileWriter writer(dir / "t", 10);
  writer.append(std::vector<int32_t>{1, 2});
  EXPECT_TRUE(throws_error(ErrorCode::kCorrupt, {"token 3", "id 10"}, [&] {
    writer.append(std::vector<int32_t>{9, 10});
  }));
  EXPECT_TRUE(throws_error(ErrorCode::kCorrupt, {"id -1"}, [&] { writer.append(std::vector<int32_t>{-1}); }));
  EXPECT_TRUE(throws_error(ErrorCode::kRuntime, {"vocabulary"}, [&] { TokenFileWriter(dir / "u", 0); }));
}

}  // namespace
}  // namespace xce

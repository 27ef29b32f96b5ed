#include "src/core/file.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <csignal>
#include <string>

#include "tests/support/errors.h"
#include "tests/support/temp_dir.h"

namespace xce {
namespace {

using test::throws_error;

TEST(InputFile, ReadsAnyPart) {
  test::TempDir dir;
  test::write_file(dir / "a", "0123456789");
  InputFile file(dir / "a");
  EXPECT_EQ(file.size_bytes(), 10u);
  std::string part(4, '?');
  file.read(3, part.data(), 4);
  EXPECT_EQ(part, "3456");
}

TEST(InputFile, NamesWhatIsWrong) {
  test::TempDir dir;
  EXPECT_TRUE(
      throws_error(ErrorCode::kUsage, {"missing.bin", "No such file"}, [&] { InputFile(dir / "missing.bin"); }));
  EXPECT_TRUE(throws_error(ErrorCode::kUsage, {dir.path().native(), "regular"}, [&] { InputFile(dir.path()); }));
  ASSERT_EQ(::mkfifo((dir / "pipe").c_str(), 0600), 0);
  EXPECT_TRUE(throws_error(ErrorCode::kUsage, {"pipe", "regular"}, [&] { InputFile(dir / "pipe"); }));
  test::write_file(dir / "short", "abc");
  char out[8];
  EXPECT_TRUE(throws_error(ErrorCode::kCorrupt, {"short", "ends at byte 3"},
                           [&] { InputFile(dir / "short").read(1, out, 5); }));
}

TEST(AtomicFile, AppearsWholeOrNotAtAll) {
  test::TempDir dir;
  test::write_file(dir / "a", "old");
  {
    AtomicFile out(dir / "a");
    out.file().write("new", 3);
    EXPECT_EQ(test::read_file(dir / "a"), "old");
  }
  EXPECT_EQ(test::read_file(dir / "a"), "old");
  EXPECT_EQ(test::count_entries(dir.path()), 1u);
  write_text_file(dir / "a", "newer");
  EXPECT_EQ(test::read_file(dir / "a"), "newer");
  EXPECT_EQ(test::count_entries(dir.path()), 1u);
}

TEST(OutputFile, LargeAndSmallPiecesKeepTheirOrder) {
  test::TempDir dir;
  OutputFile out(dir / "a");
  std::string want;
  for (size_t bytes : {1u, 700000u, 700000u, 3000000u, 5u}) {
    std::string piece(bytes, static_cast<char>('a' + want.size() % 26));
    out.write(piece.data(), piece.size());
    want += piece;
  }
  EXPECT_EQ(out.size_bytes(), want.size());
  out.write_at(2, "##", 2);
  want.replace(2, 2, "##");
  out.finish();
  EXPECT_TRUE(test::read_file(dir / "a") == want);
  EXPECT_TRUE(throws_error(ErrorCode::kDisk, {"create", "File exists"}, [&] { OutputFile(dir / "a"); }));
}

// A file size limit stands in for a full disk: write() fails midway in the same manner.
TEST(AtomicFile, AFullDiskIsAnErrorAndLeavesNothing) {
  test::TempDir dir;
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit before{}, small{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  small = before;
  small.rlim_cur = 100000;
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  std::string text(300000, 'x');
  auto result = throws_error(ErrorCode::kDisk, {"write", "big.bin", "File too large"},
                             [&] { write_text_file(dir / "big.bin", text); });
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_TRUE(result);
  EXPECT_EQ(test::count_entries(dir.path()), 0u);
}

TEST(Directories, ErrorsNameThePath) {
  test::TempDir dir;
  test::write_file(dir / "file", "x");
  EXPECT_TRUE(
      throws_error(ErrorCode::kDisk, {"file/below", "Not a directory"}, [&] { make_directories(dir / "file/below"); }));
  EXPECT_TRUE(throws_error(ErrorCode::kDisk, {"nowhere"}, [&] { rename_path(dir / "nowhere", dir / "x"); }));
  EXPECT_TRUE(
      throws_error(ErrorCode::kDisk, {"none/.a", "No such file"}, [&] { write_text_file(dir / "none/a", "x"); }));
}

TEST(AtomicFile, WhatADeadProcessLeftIsRemoved) {
  test::TempDir dir;
  test::write_file(dir / ".model.tmp-123-abc", "x");
  test::write_file(dir / "model.tmp-1", "a user's own");
  test::write_file(dir / ".hidden", "a user's own");
  remove_unfinished_files(dir.path());
  remove_unfinished_files(dir / "none");
  EXPECT_EQ(test::count_entries(dir.path()), 2u);
  EXPECT_FALSE(path_exists(dir / ".model.tmp-123-abc"));
}

TEST(FileLock, ShutsOthersOutUntilItGoes) {
  test::TempDir dir;
  {
    FileLock lock(dir / ".lock");
    EXPECT_TRUE(throws_error(ErrorCode::kUsage, {".lock", "another process"}, [&] { FileLock again(dir / ".lock"); }));
  }
  EXPECT_NO_THROW(FileLock(dir / ".lock"));
  EXPECT_TRUE(throws_error(ErrorCode::kDisk, {"none/.lock"}, [&] { FileLock lock(dir / "none/.lock"); }));
}

TEST(ExchangePaths, SwapsOrMoves) {
  test::TempDir dir;
  make_directories(dir / "a");
  test::write_file(dir / "a/x", "1");
  exchange_paths(dir / "a", dir / "b");
  EXPECT_FALSE(path_exists(dir / "a"));
  make_directories(dir / "a");
  test::write_file(dir / "a/x", "2");
  exchange_paths(dir / "a", dir / "b");
  EXPECT_EQ(test::read_file(dir / "b/x"), "2");
  EXPECT_EQ(test::read_file(dir / "a/x"), "1");
}

}  // namespace
}  // namespace xce

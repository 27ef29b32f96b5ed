// The project's token file. Little-endian, a header of 64 bytes, then the ids:
//    0  8  magic "XCETOKEN"         32  8  XXH64 of the payload
//    8  4  version, 1               40 16  zero
//   12  4  bytes per id: 1, 2 or 4  56  8  XXH64 of bytes 0 to 55
//   16  8  number of ids            64     ids, unsigned
//   24  8  vocabulary: every id is below it
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>

#include "src/core/file.h"
#include "src/core/hash.h"

namespace xce {

struct TokenFileHeader {
  int64_t count = 0, vocab_size = 0;
  int32_t id_bytes = 0;
  uint64_t checksum = 0;  // of the payload
};

// Appends ids to a file that appears under its name at commit(). An id outside [0, vocab_size) is kCorrupt.
class TokenFileWriter {
 public:
  // The narrowest width that holds vocab_size ids is chosen. 1 <= vocab_size <= 2^31 - 1.
  TokenFileWriter(const std::filesystem::path& path, int64_t vocab_size);
  void append(std::span<const int32_t> ids);
  void commit();
  int64_t count() const { return header_.count; }

 private:
  std::filesystem::path path_;
  AtomicFile out_;
  TokenFileHeader header_;
  Xxh64 hash_;
};

// Opening checks magic, version, header checksum, exact size and that there is a token; kCorrupt names file and reason.
class TokenFileReader {
 public:
  explicit TokenFileReader(const std::filesystem::path& path);
  const TokenFileHeader& header() const { return header_; }
  const std::filesystem::path& path() const { return file_.path(); }
  // Ids [offset, offset + out.size()); one outside the vocabulary is kCorrupt with file, index and id. Thread-safe.
  void read(int64_t offset, std::span<int32_t> out) const;
  void verify() const;  // reads everything: the payload's checksum and every id

 private:
  InputFile file_;
  TokenFileHeader header_;
};

}  // namespace xce

#include "src/data/token_file.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <type_traits>
#include <vector>

#include "kernels/base/check.h"

namespace xce {
namespace {

constexpr char kMagic[8] = {'X', 'C', 'E', 'T', 'O', 'K', 'E', 'N'};
constexpr uint32_t kVersion = 1;
constexpr int64_t kChunk = 16384;  // ids converted at a time

// The header as it lies in the file.
struct RawHeader {
  char magic[8];
  uint32_t version, id_bytes;
  uint64_t count, vocab_size, payload_checksum, zero[2], header_checksum;
};
static_assert(sizeof(RawHeader) == 64);

uint64_t header_checksum(const RawHeader& raw) {
  return xxh64(&raw, offsetof(RawHeader, header_checksum));
}

RawHeader raw_header(const TokenFileHeader& header) {
  RawHeader raw{};
  std::memcpy(raw.magic, kMagic, sizeof kMagic);
  raw.version = kVersion;
  raw.id_bytes = static_cast<uint32_t>(header.id_bytes);
  raw.count = static_cast<uint64_t>(header.count);
  raw.vocab_size = static_cast<uint64_t>(header.vocab_size);
  raw.payload_checksum = header.checksum;
  raw.header_checksum = header_checksum(raw);
  return raw;
}

[[noreturn]] void corrupt(const fs::path& path, const std::string& reason) {
  throw Error(ErrorCode::kCorrupt, str(path.native(), ": ", reason));
}

TokenFileHeader parse_header(const InputFile& file) {
  const fs::path& path = file.path();
  if (file.size_bytes() == 0) corrupt(path, "empty, there is nothing to read");
  if (file.size_bytes() < sizeof(RawHeader))
    corrupt(path, str(file.size_bytes(), " bytes are too few for a token file"));
  RawHeader raw;
  file.read(0, &raw, sizeof raw);
  if (std::memcmp(raw.magic, kMagic, sizeof kMagic) != 0) corrupt(path, "not a token file (no XCETOKEN at its start)");
  if (raw.version != kVersion) corrupt(path, str("token file version ", raw.version, ", only ", kVersion, " is known"));
  if (raw.header_checksum != header_checksum(raw)) corrupt(path, "the header does not match its checksum");
  if (raw.id_bytes != 1 && raw.id_bytes != 2 && raw.id_bytes != 4) corrupt(path, str(raw.id_bytes, " bytes per id"));
  if (raw.vocab_size < 1 || raw.vocab_size > INT32_MAX) corrupt(path, str("vocabulary ", raw.vocab_size));
  if (raw.count == 0) corrupt(path, "holds no tokens");
  uint64_t payload = file.size_bytes() - sizeof raw;
  if (raw.count > payload / raw.id_bytes || raw.count * raw.id_bytes != payload)
    corrupt(path,
            str(payload, " bytes after the header, ", raw.count, " ids of ", raw.id_bytes, " bytes were promised"));
  return {static_cast<int64_t>(raw.count), static_cast<int64_t>(raw.vocab_size), static_cast<int32_t>(raw.id_bytes),
          raw.payload_checksum};
}

int32_t width_for(int64_t vocab_size) {
  XCE_CHECK(vocab_size >= 1 && vocab_size <= INT32_MAX, "a vocabulary in [1, 2^31)", vocab_size);
  return vocab_size <= 1 << 8 ? 1 : vocab_size <= 1 << 16 ? 2 : 4;
}

// Calls f(std::type_identity<T>{}) with the unsigned type of `id_bytes` bytes.
template <class F>
void visit_width(int32_t id_bytes, F&& f) {
  if (id_bytes == 1) return f(std::type_identity<uint8_t>{});
  if (id_bytes == 2) return f(std::type_identity<uint16_t>{});
  f(std::type_identity<uint32_t>{});
}

[[noreturn]] void bad_id(const fs::path& path, int64_t index, int64_t id, int64_t vocab_size) {
  corrupt(path, str("token ", index, " has id ", id, ", the vocabulary is ", vocab_size));
}

}  // namespace

TokenFileWriter::TokenFileWriter(const fs::path& path, int64_t vocab_size) : path_(path), out_(path) {
  header_.vocab_size = vocab_size;
  header_.id_bytes = width_for(vocab_size);
  RawHeader placeholder{};
  out_.file().write(&placeholder, sizeof placeholder);
}

void TokenFileWriter::append(std::span<const int32_t> ids) {
  visit_width(header_.id_bytes, [&]<class T>(std::type_identity<T>) {
    std::array<T, kChunk> chunk;
    while (!ids.empty()) {
      size_t n = std::min(ids.size(), chunk.size());
      for (size_t i = 0; i < n; ++i) {
        if (ids[i] < 0 || ids[i] >= header_.vocab_size) bad_id(path_, header_.count + i, ids[i], header_.vocab_size);
        chunk[i] = static_cast<T>(ids[i]);
      }
      hash_.update(chunk.data(), n * sizeof(T));
      out_.file().write(chunk.data(), n * sizeof(T));
      header_.count += static_cast<int64_t>(n);
      ids = ids.subspan(n);
    }
  });
}

void TokenFileWriter::commit() {
  header_.checksum = hash_.digest();
  RawHeader raw = raw_header(header_);
  out_.file().write_at(0, &raw, sizeof raw);
  out_.commit();
}

TokenFileReader::TokenFileReader(const fs::path& path) : file_(path), header_(parse_header(file_)) {}

void TokenFileReader::read(int64_t offset, std::span<int32_t> out) const {
  XCE_CHECK(offset >= 0 && offset <= header_.count && out.size() <= static_cast<uint64_t>(header_.count - offset),
            str("a range of tokens within [0, ", header_.count, ")"), str(offset, " + ", out.size()));
  visit_width(header_.id_bytes, [&]<class T>(std::type_identity<T>) {
    std::array<T, kChunk> chunk;
    for (int64_t index = offset; !out.empty();) {
      size_t n = std::min(out.size(), chunk.size());
      file_.read(sizeof(RawHeader) + static_cast<uint64_t>(index) * sizeof(T), chunk.data(), n * sizeof(T));
      for (size_t i = 0; i < n; ++i) {
        if (chunk[i] >= static_cast<uint64_t>(header_.vocab_size))
          bad_id(file_.path(), index + static_cast<int64_t>(i), chunk[i], header_.vocab_size);
        out[i] = static_cast<int32_t>(chunk[i]);
      }
      index += static_cast<int64_t>(n);
      out = out.subspan(n);
    }
  });
}

void TokenFileReader::verify() const {
  // The checksum first: a flipped bit may also make an id too large, and the damage is the better message.
  constexpr uint64_t kBlock = uint64_t{1} << 20;
  std::vector<char> block(kBlock);
  Xxh64 hash;
  for (uint64_t at = sizeof(RawHeader); at < file_.size_bytes();) {
    uint64_t n = std::min(kBlock, file_.size_bytes() - at);
    file_.read(at, block.data(), n);
    hash.update(block.data(), n);
    at += n;
  }
  if (hash.digest() != header_.checksum)
    corrupt(file_.path(),
            str("the tokens have checksum ", hex64(hash.digest()), ", the header says ", hex64(header_.checksum)));
  std::vector<int32_t> ids(kChunk);
  for (int64_t at = 0; at < header_.count; at += kChunk) {
    auto n = static_cast<size_t>(std::min(kChunk, header_.count - at));
    read(at, std::span(ids).first(n));
  }
}

}  // namespace xce

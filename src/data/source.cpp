#include "src/data/source.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "kernels/base/check.h"
#include "src/core/file.h"
#include "src/core/hash.h"
#include "src/data/token_file.h"

namespace xce {
namespace {

// Hash of at most 256 blocks of 64 KiB, evenly spread: files up to 16 MiB entirely.
uint64_t sampled_hash(const InputFile& file) {
  constexpr uint64_t kBlock = 65536, kBlocks = 256;
  uint64_t size = file.size_bytes(), blocks = std::min(kBlocks, (size + kBlock - 1) / kBlock);
  std::vector<char> buffer(kBlock);
  Xxh64 hash(size);
  for (uint64_t i = 0; i < blocks; ++i) {
    // The last block ends where the file ends; the quotient and the remainder apart, so that nothing overflows.
    uint64_t begin = i * kBlock;
    if (size > kBlock * kBlocks) {
      uint64_t last = size - kBlock, gaps = blocks - 1;
      begin = last / gaps * i + last % gaps * i / gaps;
    }
    uint64_t bytes = std::min(kBlock, size - begin);
    file.read(begin, buffer.data(), bytes);
    hash.update(buffer.data(), bytes);
  }
  return hash.digest();
}

class ByteSource : public TokenSource {
 public:
  explicit ByteSource(const fs::path& path) : file_(path) {
    if (file_.size_bytes() == 0)
      throw Error(ErrorCode::kCorrupt, str(path.native(), ": empty, there is nothing to read"));
    fingerprint_ = sampled_hash(file_);
  }
  int64_t size() const override { return static_cast<int64_t>(file_.size_bytes()); }
  int64_t vocab_size() const override { return 256; }
  void read(int64_t offset, std::span<int32_t> out) const override {
    check_read_range(*this, offset, out.size());
    std::array<unsigned char, 8192> buffer;
    for (size_t done = 0; done < out.size();) {
      size_t part = std::min(buffer.size(), out.size() - done);
      file_.read(static_cast<uint64_t>(offset) + done, buffer.data(), part);
      std::copy_n(buffer.begin(), part, out.begin() + done);
      done += part;
    }
  }
  uint64_t fingerprint() const override { return fingerprint_; }
  std::string describe() const override { return str("bytes of ", file_.path().native()); }

 private:
  InputFile file_;
  uint64_t fingerprint_;
};

class TokenFileSource : public TokenSource {
 public:
  explicit TokenFileSource(const fs::path& path) : file_(path) {}
  int64_t size() const override { return file_.header().count; }
  int64_t vocab_size() const override { return file_.header().vocab_size; }
  void read(int64_t offset, std::span<int32_t> out) const override {
    check_read_range(*this, offset, out.size());
    file_.read(offset, out);
  }
  uint64_t fingerprint() const override { return mix64(file_.header().checksum, size()); }
  std::string describe() const override { return str("tokens of ", file_.path().native()); }

 private:
  TokenFileReader file_;
};

class SubRange : public TokenSource {
 public:
  SubRange(TokenSourcePtr source, int64_t begin, int64_t end) : source_(std::move(source)), begin_(begin), end_(end) {}
  int64_t size() const override { return end_ - begin_; }
  int64_t vocab_size() const override { return source_->vocab_size(); }
  void read(int64_t offset, std::span<int32_t> out) const override {
    check_read_range(*this, offset, out.size());
    source_->read(begin_ + offset, out);
  }
  uint64_t fingerprint() const override { return mix64(mix64(source_->fingerprint(), begin_), end_); }
  std::string describe() const override { return str(source_->describe(), ", tokens ", begin_, " to ", end_ - 1); }

 private:
  TokenSourcePtr source_;
  int64_t begin_, end_;
};

class UniformSource : public TokenSource {
 public:
  UniformSource(int64_t vocab_size, int64_t size, uint64_t seed) : vocab_size_(vocab_size), size_(size), seed_(seed) {}
  int64_t size() const override { return size_; }
  int64_t vocab_size() const override { return vocab_size_; }
  void read(int64_t offset, std::span<int32_t> out) const override {
    check_read_range(*this, offset, out.size());
    for (int32_t& id : out) id = static_cast<int32_t>(scale_to(mix64(seed_, offset++), vocab_size_));
  }
  uint64_t fingerprint() const override { return mix64(mix64(seed_, vocab_size_), size_); }
  std::string describe() const override { return str("uniform random ids below ", vocab_size_); }

 private:
  int64_t vocab_size_, size_;
  uint64_t seed_;
};

}  // namespace

void check_read_range(const TokenSource& source, int64_t offset, size_t count) {
  int64_t size = source.size();
  XCE_CHECK(offset >= 0 && offset <= size && count <= static_cast<uint64_t>(size - offset),
            str("a range of tokens within [0, ", size, ")"), str(offset, " + ", count));
}

TokenSourcePtr open_bytes(const fs::path& path) {
  return std::make_shared<ByteSource>(path);
}
TokenSourcePtr open_tokens(const fs::path& path) {
  return std::make_shared<TokenFileSource>(path);
}

TokenSourcePtr sub_range(TokenSourcePtr source, int64_t begin, int64_t end) {
  XCE_CHECK(0 <= begin && begin < end && end <= source->size(), str("a part of [0, ", source->size(), ")"),
            str("[", begin, ", ", end, ")"));
  return std::make_shared<SubRange>(std::move(source), begin, end);
}

SourceSplit split_source(const TokenSourcePtr& source, double validation_fraction) {
  if (!(validation_fraction > 0 && validation_fraction < 1))
    throw Error(ErrorCode::kUsage, str("expected a validation fraction in (0, 1), got ", validation_fraction));
  int64_t size = source->size(), validation = std::llround(static_cast<double>(size) * validation_fraction);
  if (validation < 1 || validation >= size)
    throw Error(ErrorCode::kUsage,
                str(source->describe(), ": ", size, " tokens are too few to hold out ", validation_fraction));
  return {sub_range(source, 0, size - validation), sub_range(source, size - validation, size)};
}

TokenSourcePtr uniform_source(int64_t vocab_size, int64_t size, uint64_t seed) {
  XCE_CHECK(vocab_size >= 1 && vocab_size <= INT32_MAX, "a vocabulary in [1, 2^31)", vocab_size);
  if (size < 1) throw Error(ErrorCode::kCorrupt, "a uniform source of no tokens holds no data");
  return std::make_shared<UniformSource>(vocab_size, size, mix64(seed));
}

}  // namespace xce

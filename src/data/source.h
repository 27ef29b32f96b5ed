// Where tokens come from: a long sequence of ids that can be read at any position, from several threads. What is random
// is a function of (seed, position), so every rank, worker and resumed run sees the same sequence.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

namespace xce {

class TokenSource {
 public:
  virtual ~TokenSource() = default;
  virtual int64_t size() const = 0;        // tokens
  virtual int64_t vocab_size() const = 0;  // every id is in [0, vocab_size)
  // The ids at [offset, offset + out.size()); a range outside [0, size) is kRuntime. Thread-safe.
  virtual void read(int64_t offset, std::span<int32_t> out) const = 0;
  // Changes when the content does; a resumed run compares it. Large files are sampled, not read whole.
  virtual uint64_t fingerprint() const = 0;
  virtual std::string describe() const = 0;  // for people: "bytes of text/bible.txt"
};
using TokenSourcePtr = std::shared_ptr<const TokenSource>;
// Throws kRuntime unless [offset, offset + count) lies in the source: for implementations of read().
void check_read_range(const TokenSource& source, int64_t offset, size_t count);

// The bytes of a file, ids 0 to 255. A missing file is kUsage, an empty one kCorrupt.
TokenSourcePtr open_bytes(const std::filesystem::path& path);
// A file of the format of token_file.h, ids checked against its vocabulary as they are read.
TokenSourcePtr open_tokens(const std::filesystem::path& path);
// Tokens [begin, end) of another source.
TokenSourcePtr sub_range(TokenSourcePtr source, int64_t begin, int64_t end);

struct SourceSplit {
  TokenSourcePtr train, validation;
};
// Split by position: the last round(size * validation_fraction) tokens are the validation set. Each part gets at least
// one token, else kUsage. 0 < validation_fraction < 1.
SourceSplit split_source(const TokenSourcePtr& source, double validation_fraction);

// Independent uniform ids, for tests of speed: no file, any vocabulary.
TokenSourcePtr uniform_source(int64_t vocab_size, int64_t size, uint64_t seed);

}  // namespace xce

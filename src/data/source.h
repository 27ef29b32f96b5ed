// Where tokens come from: a long sequence of ids that can be read at any position, from several threads. What is random
// is a function of (seed, position), so every rank, worker and resumed run sees the same sequence.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

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

// A stationary Markov chain over `states` ids with a known entropy rate. With probability kRestart the next id is
// uniform, else it is one of four successors of the present one, with fixed random weights. The uniform restarts make
// every position computable on its own: the id at i depends on nothing before the last restart at or before i.
class MarkovSource : public TokenSource {
 public:
  static constexpr double kRestart = 0.125;
  static constexpr int kSuccessors = 4;
  // The table comes from table_seed, the path through it from path_seed: sources that share a table have one
  // distribution.
  struct Options {
    int64_t states = 64;  // >= 4
    int64_t size = 0;
    uint64_t table_seed = 0, path_seed = 0;
  };
  explicit MarkovSource(const Options& options);

  int64_t size() const override { return options_.size; }
  int64_t vocab_size() const override { return options_.states; }
  void read(int64_t offset, std::span<int32_t> out) const override;
  uint64_t fingerprint() const override;
  std::string describe() const override;

  // H(next | present) in nats under the stationary distribution: the floor of the loss of any model.
  double entropy_nats() const;
  std::vector<double> transition_row(int64_t state) const;  // probabilities of the next id

 private:
  bool restarts(int64_t position) const;
  int32_t restart_state(int64_t position) const;
  int32_t next_state(int32_t state, int64_t position) const;

  Options options_;
  uint64_t path_key_;
  std::vector<int32_t> successors_;  // (states, kSuccessors), distinct in a row
  std::vector<double> cumulative_;   // (states, kSuccessors), of the weights in a row
};

// Independent uniform ids, for tests of speed: no file, any vocabulary.
TokenSourcePtr uniform_source(int64_t vocab_size, int64_t size, uint64_t seed);

}  // namespace xce

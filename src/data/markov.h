// A synthetic source whose entropy is known exactly: the floor that a model's loss can be measured against.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "src/data/source.h"

namespace xce {

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

}  // namespace xce

#include "src/data/markov.h"

#include <algorithm>
#include <cmath>

#include "kernels/base/check.h"
#include "src/core/hash.h"

namespace xce {
namespace {
// Streams of the hash: what is drawn under one seed is independent.
enum : uint64_t { kSuccessorStream = 1, kWeightStream, kRestartStream, kStateStream, kBranchStream };
}  // namespace

MarkovSource::MarkovSource(const Options& options) : options_(options), path_key_(mix64(options.path_seed)) {
  XCE_CHECK(options.states >= kSuccessors && options.states <= 1 << 20, "MarkovSource states in [4, 2^20]",
            options.states);
  if (options.size < 1) throw Error(ErrorCode::kCorrupt, "a Markov source of no tokens holds no data");
  uint64_t table_key = mix64(options.table_seed);
  successors_.reserve(options.states * kSuccessors);
  cumulative_.reserve(options.states * kSuccessors);
  for (int64_t state = 0; state < options.states; ++state) {
    uint64_t row_key = mix64(table_key, state);
    size_t row = successors_.size();
    for (uint64_t attempt = 0; successors_.size() < row + kSuccessors; ++attempt) {
      uint64_t bits = mix64(mix64(row_key, kSuccessorStream), attempt);
      auto candidate = static_cast<int32_t>(scale_to(bits, options.states));
      if (std::find(successors_.begin() + row, successors_.end(), candidate) == successors_.end())
        successors_.push_back(candidate);
    }
    double sum = 0, weights[kSuccessors];
    for (int i = 0; i < kSuccessors; ++i) {
      double u = unit_interval(mix64(mix64(row_key, kWeightStream), i));
      sum += weights[i] = u * u + 0.02;  // squared: rows from nearly certain to nearly even
    }
    double running = 0;
    for (double weight : weights) cumulative_.push_back(running += weight / sum);
    cumulative_.back() = 1.0;
  }
}

bool MarkovSource::restarts(int64_t position) const {
  return unit_interval(mix64(mix64(path_key_, kRestartStream), position)) < kRestart;
}

int32_t MarkovSource::restart_state(int64_t position) const {
  return static_cast<int32_t>(scale_to(mix64(mix64(path_key_, kStateStream), position), options_.states));
}

int32_t MarkovSource::next_state(int32_t state, int64_t position) const {
  if (restarts(position)) return restart_state(position);
  double u = unit_interval(mix64(mix64(path_key_, kBranchStream), position));
  const double* row = cumulative_.data() + state * kSuccessors;
  int branch = 0;
  while (u >= row[branch]) ++branch;  // ends: u < 1 = row[kSuccessors - 1]
  return successors_[state * kSuccessors + branch];
}

void MarkovSource::read(int64_t offset, std::span<int32_t> out) const {
  check_read_range(*this, offset, out.size());
  if (out.empty()) return;
  // Restarts go on before position 0, so the first token is drawn from the stationary distribution too.
  int64_t position = offset;
  while (!restarts(position)) --position;
  int32_t state = restart_state(position);
  while (position < offset) state = next_state(state, ++position);
  out[0] = state;
  for (size_t i = 1; i < out.size(); ++i) out[i] = state = next_state(state, ++position);
}

uint64_t MarkovSource::fingerprint() const {
  return mix64(mix64(mix64(options_.table_seed, options_.path_seed), options_.states), options_.size);
}

std::string MarkovSource::describe() const {
  return str("Markov chain of ", options_.states, " states, entropy ", entropy_nats(), " nats per token");
}

std::vector<double> MarkovSource::transition_row(int64_t state) const {
  std::vector<double> row(options_.states, kRestart / static_cast<double>(options_.states));
  double before = 0;
  for (int64_t i = state * kSuccessors; i < (state + 1) * kSuccessors; ++i) {
    row[successors_[i]] += (1 - kRestart) * (cumulative_[i] - before);
    before = cumulative_[i];
  }
  return row;
}

double MarkovSource::entropy_nats() const {
  // Each step of the power iteration shrinks the error by 1 - kRestart at least: 300 steps leave 1e-17.
  auto states = static_cast<size_t>(options_.states);
  std::vector<double> stationary(states, 1.0 / states), next(states);
  for (int step = 0; step < 300; ++step) {
    std::fill(next.begin(), next.end(), kRestart / states);
    for (size_t state = 0; state < states; ++state) {
      double before = 0;
      for (size_t i = state * kSuccessors; i < (state + 1) * kSuccessors; ++i) {
        next[successors_[i]] += (1 - kRestart) * stationary[state] * (cumulative_[i] - before);
        before = cumulative_[i];
      }
    }
    stationary.swap(next);
  }
  double entropy = 0;
  double elsewhere = kRestart / states;  // the probability of each id that is no successor
  for (size_t state = 0; state < states; ++state) {
    double before = 0, row = -static_cast<double>(states - kSuccessors) * elsewhere * std::log(elsewhere);
    for (size_t i = state * kSuccessors; i < (state + 1) * kSuccessors; ++i) {
      double p = elsewhere + (1 - kRestart) * (cumulative_[i] - before);
      row -= p * std::log(p);
      before = cumulative_[i];
    }
    entropy += stationary[state] * row;
  }
  return entropy;
}

}  // namespace xce

// The token sources a run's config names: what it trains on and what it is validated on.
#pragma once

#include <optional>

#include "src/core/config.h"
#include "src/data/source.h"

namespace xce {

struct Dataset {
  TokenSourcePtr train;
  TokenSourcePtr validation;           // null: the config names none
  std::optional<double> entropy_nats;  // of a Markov source: the floor of the loss
  int64_t vocab_size() const { return train->vocab_size(); }
};

// Opens them and fills in config.model.vocab_size where the data decides it. kUsage: missing file, or a source whose
// ids do not fit the vocabulary; kCorrupt: empty or damaged data.
Dataset open_dataset(Config& config);

}  // namespace xce

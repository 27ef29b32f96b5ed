#include "src/train/dataset.h"

#include <filesystem>

#include "src/data/markov.h"

namespace xce {
namespace {

TokenSourcePtr open_file(const Config& config, const char* key, const std::string& path) {
  if (config.data.kind == DataKind::kBytes) return open_bytes(path);
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored))
    throw config_error(config, key, str(path, ": no such file; tools/prepare_data.sh makes token files"));
  return open_tokens(path);
}

Dataset open_files(const Config& config) {
  const DataConfig& data = config.data;
  Dataset set;
  TokenSourcePtr train = open_file(config, "data.train", data.train);
  if (!data.val.empty()) {
    set.train = train;
    set.validation = open_file(config, "data.val", data.val);
  } else if (data.val_fraction > 0) {
    SourceSplit split = split_source(train, data.val_fraction);
    set.train = split.train;
    set.validation = split.validation;
  } else {
    set.train = train;
  }
  return set;
}

// Validation is another path through the same chain.
Dataset make_markov(const Config& config) {
  MarkovSource::Options options{.states = config.data.markov_states,
                                .size = config.data.generated_tokens,
                                .table_seed = static_cast<uint64_t>(config.run.seed),
                                .path_seed = 1};
  auto chain = std::make_shared<MarkovSource>(options);
  Dataset set{chain, nullptr, chain->entropy_nats()};
  if (config.data.val_fraction > 0) {
    options.path_seed = 2;
    options.size = static_cast<int64_t>(static_cast<double>(options.size) * config.data.val_fraction);
    if (options.size < 1)
      throw config_error(config, "data.val_fraction",
                         str(config.data.val_fraction, " of data.generated_tokens ", config.data.generated_tokens,
                             " is no token at all"));
    set.validation = std::make_shared<MarkovSource>(options);
  }
  return set;
}

}  // namespace

Dataset open_dataset(Config& config) {
  Dataset set;
  switch (config.data.kind) {
    case DataKind::kBytes:
    case DataKind::kTokens:
      set = open_files(config);
      break;
    case DataKind::kMarkov:
      set = make_markov(config);
      break;
    case DataKind::kSynthetic:
      set.train =
          uniform_source(config.model.vocab_size, config.data.generated_tokens, static_cast<uint64_t>(config.run.seed));
      break;
  }
  int64_t& vocab = config.model.vocab_size;
  if (vocab == 0) vocab = set.vocab_size();
  for (const TokenSourcePtr& source : {set.train, set.validation})
    if (source && source->vocab_size() > vocab)
      throw config_error(config, "model.vocab_size",
                         str(vocab, " is smaller than the ", source->vocab_size(), " ids of ", source->describe()));
  return set;
}

}  // namespace xce

// A model as Hugging Face lays it out: config.json beside model.safetensors, or beside the shards that
// model.safetensors.index.json names. Which tensors there are is the model's business; this file finds, checks and
// converts.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "src/io/hf_config.h"
#include "src/io/safetensors.h"

namespace xce {

struct ExpectedTensor {
  std::string name;
  std::vector<int64_t> shape;
  // Not empty: the tensor is the one of that name over again (a tied head). It may be absent; if present it must be
  // equal.
  std::string same_as;
};

class HfDirectory {
 public:
  // A missing directory, config.json or weights file is kUsage; an inconsistent index kCorrupt.
  explicit HfDirectory(std::filesystem::path path);

  const HfConfig& config() const { return config_; }
  const std::filesystem::path& path() const { return path_; }
  // Exactly the expected tensors, with their shapes: else kCorrupt with all missing, extra, misshaped and unequal ones.
  // The rotary_emb.inv_freq buffers of old exports are passed over.
  void check(const std::vector<ExpectedTensor>& expected) const;
  bool has(const std::string& name) const { return file_of_.count(name) != 0; }
  const StoredTensor& at(const std::string& name) const;
  std::vector<std::string> names() const;
  // The whole tensor as dtype, or `count` elements from `first` on.
  void read(const std::string& name, DType dtype, void* out) const;
  void read(const std::string& name, int64_t first, int64_t count, DType dtype, void* out) const;

 private:
  void open_index(const std::filesystem::path& index);
  const SafetensorsFile& file_of(const std::string& name) const;
  bool equal(const std::string& a, const std::string& b) const;

  std::filesystem::path path_;
  HfConfig config_;
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::map<std::string, const SafetensorsFile*> file_of_;
};

// Makes `path` if needed, writes model.safetensors, then config.json; each replaces an older one atomically.
void write_hf_directory(const std::filesystem::path& path, const HfConfig& config,
                        const std::vector<TensorToWrite>& tensors);

}  // namespace xce

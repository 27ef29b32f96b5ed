#include "src/io/hf_directory.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <string_view>

#include "kernels/base/check.h"
#include "src/core/file.h"
#include "src/io/json.h"

namespace xce {
namespace {

constexpr const char* kWeights = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";

[[noreturn]] void corrupt(const fs::path& path, const std::string& reason) {
  throw Error(ErrorCode::kCorrupt, str(path.native(), ": ", reason));
}

bool is_rotary_buffer(const std::string& name) {
  constexpr std::string_view kSuffix = ".rotary_emb.inv_freq";
  return name.size() > kSuffix.size() && name.compare(name.size() - kSuffix.size(), kSuffix.size(), kSuffix) == 0;
}

}  // namespace

HfDirectory::HfDirectory(fs::path path) : path_(std::move(path)), config_(read_hf_config(path_ / "config.json")) {
  if (path_exists(path_ / kWeights)) {
    files_.push_back(std::make_unique<SafetensorsFile>(path_ / kWeights));
    for (const auto& [name, tensor] : files_[0]->tensors()) file_of_[name] = files_[0].get();
  } else if (path_exists(path_ / kIndex)) {
    open_index(path_ / kIndex);
  } else {
    throw Error(ErrorCode::kUsage, str(path_.native(), ": neither ", kWeights, " nor ", kIndex, " is there"));
  }
}

void HfDirectory::open_index(const fs::path& index) {
  nlohmann::json json = parse_json(read_text_file(index), index.native());
  if (!json.contains("weight_map") || !json["weight_map"].is_object()) corrupt(index, "no weight_map");
  std::map<std::string, const SafetensorsFile*> shards;
  for (const auto& [name, value] : json["weight_map"].items()) {
    if (!value.is_string()) corrupt(index, str("weight_map: ", name, " is not a string"));
    auto shard = value.get<std::string>();
    // Only names of files in this directory: an index must not lead elsewhere.
    if (shard.empty() || shard[0] == '.' || shard.find('/') != std::string::npos)
      corrupt(index, str("weight_map: ", name, " lies in '", shard, "', expected a file name"));
    auto [found, is_new] = shards.try_emplace(shard, nullptr);
    if (is_new) {
      if (!path_exists(path_ / shard)) corrupt(index, str("the file ", shard, " is not there"));
      files_.push_back(std::make_unique<SafetensorsFile>(path_ / shard));
      found->second = files_.back().get();
    }
    if (found->second->tensors().count(name) == 0) corrupt(index, str("the file ", shard, " has no tensor ", name));
    file_of_[name] = found->second;
  }
  for (const auto& [shard, file] : shards)
    for (const auto& [name, tensor] : file->tensors())
      if (file_of_.count(name) == 0 || file_of_[name] != file)
        corrupt(file->path(), str("tensor ", name, " is not in the index"));
}

const SafetensorsFile& HfDirectory::file_of(const std::string& name) const {
  auto found = file_of_.find(name);
  if (found == file_of_.end()) corrupt(path_, str("no tensor ", name));
  return *found->second;
}

const StoredTensor& HfDirectory::at(const std::string& name) const {
  return file_of(name).at(name);
}

std::vector<std::string> HfDirectory::names() const {
  std::vector<std::string> names;
  for (const auto& [name, file] : file_of_) names.push_back(name);
  return names;
}

bool HfDirectory::equal(const std::string& a, const std::string& b) const {
  const StoredTensor &first = at(a), &second = at(b);
  if (first.type != second.type || first.shape != second.shape) return false;
  constexpr uint64_t kBlock = uint64_t{4} << 20;
  std::vector<char> left(std::min(kBlock, first.bytes)), right(left.size());
  for (uint64_t offset = 0; offset < first.bytes; offset += kBlock) {
    uint64_t n = std::min(kBlock, first.bytes - offset);
    file_of(a).read_bytes(first, offset, left.data(), n);
    file_of(b).read_bytes(second, offset, right.data(), n);
    if (std::memcmp(left.data(), right.data(), n) != 0) return false;
  }
  return true;
}

void HfDirectory::check(const std::vector<ExpectedTensor>& expected) const {
  std::vector<std::string> problems;
  std::set<std::string> known;
  for (const ExpectedTensor& tensor : expected) {
    known.insert(tensor.name);
    if (!has(tensor.name)) {
      if (tensor.same_as.empty()) problems.push_back(str("missing ", tensor.name, " ", shape_text(tensor.shape)));
    } else if (at(tensor.name).shape != tensor.shape) {
      problems.push_back(str(tensor.name, " has shape ", shape_text(at(tensor.name).shape),
                             ", the configuration asks for ", shape_text(tensor.shape)));
    } else if (!tensor.same_as.empty() && has(tensor.same_as) && !equal(tensor.name, tensor.same_as)) {
      problems.push_back(str(tensor.name, " differs from ", tensor.same_as, ", the configuration ties them"));
    }
  }
  for (const auto& [name, file] : file_of_)
    if (known.count(name) == 0 && !is_rotary_buffer(name)) problems.push_back(str("unexpected ", name));
  if (problems.empty()) return;
  constexpr size_t kShown = 10;
  std::string list;
  for (size_t i = 0; i < std::min(kShown, problems.size()); ++i) list += (i ? "; " : "") + problems[i];
  if (problems.size() > kShown) list += str("; and ", problems.size() - kShown, " more");
  corrupt(path_, list);
}

void HfDirectory::read(const std::string& name, DType dtype, void* out) const {
  read(name, 0, at(name).elements(), dtype, out);
}

void HfDirectory::read(const std::string& name, int64_t first, int64_t count, DType dtype, void* out) const {
  const SafetensorsFile& file = file_of(name);
  file.read(file.at(name), first, count, dtype, out);
}

void write_hf_directory(const fs::path& path, const HfConfig& config, const std::vector<TensorToWrite>& tensors) {
  make_directories(path);
  write_safetensors(path / kWeights, tensors, {});
  write_text_file(path / "config.json", hf_config_to_json(config));
}

}  // namespace xce

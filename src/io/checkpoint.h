// Training state on disk: <root>/step-<N>/ holds one file per blob, state.json for scalars, and manifest.json with each
// file's size and XXH64. Written under a temporary name, synchronised file by file, the manifest last, then renamed: a
// directory named step-<N> with a manifest is complete, whatever happened.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace xce {

// Blob names: letters, digits, '.', '_', '-', not beginning with '.'; else kRuntime. What the disk refuses is kDisk
// with path and strerror, and what was written is removed.
class CheckpointWriter {
 public:
  using Sink = std::function<void(const void* data, size_t bytes)>;

  CheckpointWriter(const std::filesystem::path& root, int64_t step);  // makes root if needed
  ~CheckpointWriter();                                                // without commit(): removes what was written
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  void add(const std::string& name, const void* data, uint64_t bytes);
  void add(const std::string& name, const std::function<void(const Sink& sink)>& produce);  // bytes in pieces, in order
  void set_state(const nlohmann::json& state);                                              // once; an object
  // Completes the directory, replaces an older one of the same step, then removes all but the `keep` newest (and this
  // one). keep < 1: all stay. Returns the directory.
  std::filesystem::path commit(int64_t keep);

 private:
  struct Entry {
    uint64_t bytes, checksum;
  };
  std::filesystem::path root_, temporary_;
  int64_t step_;
  std::map<std::string, Entry> entries_;
  bool committed_ = false;
};

struct CheckpointFound {
  std::filesystem::path path;
  int64_t step = 0;
};
struct CheckpointSearch {
  std::optional<CheckpointFound> latest;
  std::vector<std::string> warnings;  // unfinished directories, passed over
};
// The complete checkpoint with the highest step. A root that does not exist holds none.
CheckpointSearch latest_checkpoint(const std::filesystem::path& root);
// Removes what unfinished writers left. Only for the owner of the run, while nobody writes.
void remove_unfinished(const std::filesystem::path& root);

// Opening checks the manifest, every file's presence and size, and reads the state. kCorrupt names file and reason.
class CheckpointReader {
 public:
  explicit CheckpointReader(std::filesystem::path path);

  int64_t step() const { return step_; }
  const nlohmann::json& state() const { return state_; }
  bool has(const std::string& name) const { return entries_.count(name) != 0; }
  uint64_t bytes(const std::string& name) const;  // missing: kCorrupt
  // The whole blob, checksum verified; `bytes` must be its size.
  void read(const std::string& name, void* out, uint64_t bytes) const;
  // A part of it, not verified: call verify() before.
  void read_range(const std::string& name, uint64_t offset, void* out, uint64_t bytes) const;
  void verify() const;  // every file against its checksum

 private:
  struct Entry {
    uint64_t bytes, checksum;
  };
  const Entry& entry(const std::string& name) const;
  std::filesystem::path path_;
  int64_t step_ = 0;
  std::map<std::string, Entry> entries_;
  nlohmann::json state_;
};

}  // namespace xce

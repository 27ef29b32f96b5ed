#include "src/io/checkpoint.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <string_view>
#include <system_error>

#include "kernels/base/check.h"
#include "src/core/file.h"
#include "src/core/hash.h"
#include "src/io/json.h"

namespace xce {
namespace {

using Json = nlohmann::json;

constexpr const char* kManifest = "manifest.json";
constexpr const char* kState = "state.json";
constexpr const char* kFormat = "xce-checkpoint";
constexpr int kVersion = 1;
// Unfinished and half-removed directories; never taken for a checkpoint.
constexpr std::string_view kTemporaryPrefix = ".tmp-";
constexpr std::string_view kStepPrefix = "step-";

[[noreturn]] void corrupt(const fs::path& path, const std::string& reason) {
  throw Error(ErrorCode::kCorrupt, str(path.native(), ": ", reason));
}

std::string directory_name(int64_t step) {
  return str(kStepPrefix, step);
}

// N of "step-N" without leading zeros.
std::optional<int64_t> step_of(const std::string& name) {
  if (name.compare(0, kStepPrefix.size(), kStepPrefix) != 0) return std::nullopt;
  int64_t step = -1;
  const char *begin = name.data() + kStepPrefix.size(), *end = name.data() + name.size();
  auto [stop, error] = std::from_chars(begin, end, step);
  if (error != std::errc{} || stop != end || step < 0 || directory_name(step) != name) return std::nullopt;
  return step;
}

void remove_directory(const fs::path& path) {
  std::error_code error;
  fs::remove_all(path, error);
  if (error) throw_disk_error("remove", path, error.value());
}

std::vector<fs::path> entries_of(const fs::path& root) {
  std::error_code error;
  std::vector<fs::path> entries;
  fs::directory_iterator it(root, error);
  if (error == std::errc::no_such_file_or_directory) return entries;
  for (; !error && it != fs::directory_iterator(); it.increment(error)) entries.push_back(it->path());
  if (error) throw_disk_error("list", root, error.value());
  std::sort(entries.begin(), entries.end());
  return entries;
}

bool is_temporary(const fs::path& path) {
  return path.filename().native().compare(0, kTemporaryPrefix.size(), kTemporaryPrefix) == 0;
}

fs::path temporary_name(const fs::path& root, const std::string& what) {
  return root / str(kTemporaryPrefix, what, "-", unique_suffix());
}

// Complete directories with their steps, the newest last.
std::vector<CheckpointFound> complete_checkpoints(const fs::path& root) {
  std::vector<CheckpointFound> found;
  for (const fs::path& path : entries_of(root))
    if (auto step = step_of(path.filename().native()); step && path_exists(path / kManifest))
      found.push_back({path, *step});
  std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.step < b.step; });
  return found;
}

// Renamed before it is removed: an interrupted removal must not look like a damaged checkpoint.
void retire(const fs::path& root, const fs::path& path) {
  fs::path aside = temporary_name(root, "removed-" + path.filename().native());
  rename_path(path, aside);
  remove_directory(aside);
}

void check_blob_name(const std::string& name) {
  bool valid = !name.empty() && name[0] != '.' && name != kManifest;
  for (unsigned char c : name) valid = valid && ((c < 128 && std::isalnum(c)) || c == '.' || c == '_' || c == '-');
  XCE_CHECK(valid, "a blob name of letters, digits, '.', '_' and '-'", name);
}

template <class F>
void for_blocks(uint64_t bytes, F&& f) {
  constexpr uint64_t kBlock = uint64_t{1} << 20;
  for (uint64_t offset = 0; offset < bytes; offset += kBlock) f(offset, std::min(kBlock, bytes - offset));
}

}  // namespace

CheckpointWriter::CheckpointWriter(const fs::path& root, int64_t step) : root_(root), step_(step) {
  XCE_CHECK(step >= 0, "a step >= 0", step);
  make_directories(root_);
  temporary_ = temporary_name(root_, directory_name(step));
  make_directories(temporary_);
}

CheckpointWriter::~CheckpointWriter() {
  std::error_code ignored;  // a destructor has nobody to tell; the next owner's remove_unfinished tries again
  if (!committed_) fs::remove_all(temporary_, ignored);
}

void CheckpointWriter::add(const std::string& name, const void* data, uint64_t bytes) {
  add(name, [&](const Sink& sink) {
    const auto* from = static_cast<const char*>(data);
    for_blocks(bytes, [&](uint64_t offset, uint64_t n) { sink(from + offset, n); });  // hashed while it is in the cache
  });
}

void CheckpointWriter::add(const std::string& name, const std::function<void(const Sink& sink)>& produce) {
  check_blob_name(name);
  XCE_CHECK(!committed_, "a blob before commit()", name);
  XCE_CHECK(entries_.count(name) == 0, "blob names that differ", name);
  OutputFile out(temporary_ / name);
  Xxh64 hash;
  produce([&](const void* data, size_t bytes) {
    hash.update(data, bytes);
    out.write(data, bytes);
  });
  uint64_t bytes = out.size_bytes();
  out.finish();
  entries_[name] = {bytes, hash.digest()};
}

void CheckpointWriter::set_state(const Json& state) {
  XCE_CHECK(state.is_object(), "a JSON object as state", state.dump());
  std::string text = state.dump(1) + "\n";
  add(kState, text.data(), text.size());
}

fs::path CheckpointWriter::commit(int64_t keep) {
  if (entries_.count(kState) == 0) set_state(Json::object());
  Json manifest = {{"format", kFormat}, {"version", kVersion}, {"step", step_}, {"files", Json::object()}};
  for (const auto& [name, entry] : entries_)
    manifest["files"][name] = {{"bytes", entry.bytes}, {"xxh64", hex64(entry.checksum)}};
  std::string text = manifest.dump(1) + "\n";
  OutputFile out(temporary_ / kManifest);
  out.write(text.data(), text.size());
  out.finish();
  sync_directory(temporary_);

  fs::path target = root_ / directory_name(step_);
  exchange_paths(temporary_, target);
  committed_ = true;
  sync_directory(root_);
  if (path_exists(temporary_)) remove_directory(temporary_);  // an older checkpoint of the same step
  if (keep < 1) return target;
  std::vector<CheckpointFound> found = complete_checkpoints(root_);
  for (size_t i = 0; i + static_cast<size_t>(keep) < found.size(); ++i)
    if (found[i].step != step_) retire(root_, found[i].path);
  return target;
}

CheckpointSearch latest_checkpoint(const fs::path& root) {
  CheckpointSearch search;
  for (const fs::path& path : entries_of(root)) {
    auto step = step_of(path.filename().native());
    if (is_temporary(path))
      search.warnings.push_back(str(path.native(), ": left by a writer that did not finish, passed over"));
    else if (step && !path_exists(path / kManifest))
      search.warnings.push_back(str(path.native(), ": no ", kManifest, ", half-written, passed over"));
  }
  std::vector<CheckpointFound> found = complete_checkpoints(root);
  if (!found.empty()) search.latest = found.back();
  return search;
}

void remove_unfinished(const fs::path& root) {
  for (const fs::path& path : entries_of(root)) {
    bool half_written = step_of(path.filename().native()) && !path_exists(path / kManifest);
    if (is_temporary(path) || half_written) remove_directory(path);
  }
}

CheckpointReader::CheckpointReader(fs::path path) : path_(std::move(path)) {
  fs::path manifest_path = path_ / kManifest;
  Json manifest = parse_json(read_text_file(manifest_path), manifest_path.native());
  if (manifest.value("format", Json()) != kFormat) corrupt(manifest_path, "not the manifest of a checkpoint");
  if (manifest.value("version", Json()) != kVersion)
    corrupt(manifest_path, str("version ", manifest.value("version", Json()).dump(), ", only ", kVersion, " is known"));
  if (!manifest.contains("step") || !manifest["step"].is_number_unsigned()) corrupt(manifest_path, "no step");
  step_ = manifest["step"].get<int64_t>();
  if (auto named = step_of(path_.filename().native()); named && *named != step_)
    corrupt(manifest_path, str("says step ", step_, ", the directory's name says ", *named));
  if (!manifest.contains("files") || !manifest["files"].is_object()) corrupt(manifest_path, "no files");
  for (const auto& [name, value] : manifest["files"].items()) {
    if (!value.is_object() || !value.value("bytes", Json()).is_number_unsigned() ||
        !value.value("xxh64", Json()).is_string())
      corrupt(manifest_path, str("file ", name, " has no bytes and xxh64"));
    auto digits = value["xxh64"].get<std::string>();
    Entry entry{value["bytes"].get<uint64_t>(), 0};
    auto [stop, error] = std::from_chars(digits.data(), digits.data() + digits.size(), entry.checksum, 16);
    if (error != std::errc{} || hex64(entry.checksum) != digits)
      corrupt(manifest_path, str("xxh64 of ", name, ": ", digits));
    if (name.find('/') != std::string::npos || !path_exists(path_ / name)) corrupt(path_ / name, "is not there");
    if (uint64_t size = InputFile(path_ / name).size_bytes(); size != entry.bytes)
      corrupt(path_ / name, str(size, " bytes, the manifest says ", entry.bytes));
    entries_[name] = entry;
  }
  std::string text(bytes(kState), '\0');
  read(kState, text.data(), text.size());
  state_ = parse_json(text, (path_ / kState).native());
}

const CheckpointReader::Entry& CheckpointReader::entry(const std::string& name) const {
  auto found = entries_.find(name);
  if (found == entries_.end()) corrupt(path_ / kManifest, str("no file ", name));
  return found->second;
}

uint64_t CheckpointReader::bytes(const std::string& name) const {
  return entry(name).bytes;
}

namespace {
void check_hash(const fs::path& path, const Xxh64& hash, uint64_t want) {
  if (hash.digest() != want)
    corrupt(path, str("has checksum ", hex64(hash.digest()), ", the manifest says ", hex64(want)));
}
}  // namespace

void CheckpointReader::read(const std::string& name, void* out, uint64_t bytes) const {
  const Entry& wanted = entry(name);
  if (bytes != wanted.bytes) corrupt(path_ / name, str(wanted.bytes, " bytes, expected ", bytes));
  InputFile file(path_ / name);
  Xxh64 hash;
  for_blocks(bytes, [&](uint64_t offset, uint64_t n) {
    file.read(offset, static_cast<char*>(out) + offset, n);
    hash.update(static_cast<char*>(out) + offset, n);
  });
  check_hash(file.path(), hash, wanted.checksum);
}

void CheckpointReader::read_range(const std::string& name, uint64_t offset, void* out, uint64_t bytes) const {
  const Entry& wanted = entry(name);
  XCE_CHECK(offset <= wanted.bytes && bytes <= wanted.bytes - offset,
            str("a part of ", name, " of ", wanted.bytes, " bytes"), str(offset, " + ", bytes));
  InputFile(path_ / name).read(offset, out, bytes);
}

void CheckpointReader::verify() const {
  std::vector<char> block(size_t{1} << 20);
  for (const auto& [name, wanted] : entries_) {
    InputFile file(path_ / name);
    Xxh64 hash;
    for_blocks(wanted.bytes, [&](uint64_t offset, uint64_t n) {
      file.read(offset, block.data(), n);
      hash.update(block.data(), n);
    });
    check_hash(file.path(), hash, wanted.checksum);
  }
}

}  // namespace xce

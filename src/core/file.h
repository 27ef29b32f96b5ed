// Files as the formats of this project need them: reads by pread (a truncated file is an error, not SIGBUS as with
// mmap), writes that appear whole or not at all. Errors name the path: kUsage if it is not there, kCorrupt if it ends
// early, kDisk with strerror for whatever the system refused.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace xce {

namespace fs = std::filesystem;

// Error(kDisk): "cannot <action> <path>: strerror(error)".
[[noreturn]] void throw_disk_error(std::string_view action, const fs::path& path, int error);

// A regular file open for reading; symbolic links are followed. Thread-safe.
class InputFile {
 public:
  explicit InputFile(fs::path path);
  ~InputFile();
  InputFile(InputFile&& other) noexcept;
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;
  InputFile& operator=(InputFile&&) = delete;

  const fs::path& path() const { return path_; }
  uint64_t size_bytes() const { return size_bytes_; }
  void read(uint64_t offset, void* out, size_t bytes) const;  // all of them, or it throws

 private:
  fs::path path_;
  int fd_ = -1;
  uint64_t size_bytes_ = 0;
};

// The whole file; kCorrupt if it is larger than max_bytes.
std::string read_text_file(const fs::path& path, uint64_t max_bytes = uint64_t{64} << 20);

// A new file, written through a buffer and synchronised by finish(); path must not exist. Not removed on failure.
class OutputFile {
 public:
  explicit OutputFile(fs::path path);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  void write(const void* data, size_t bytes);                      // appends
  void write_at(uint64_t offset, const void* data, size_t bytes);  // overwrites bytes already appended
  void finish();                                                   // flush, fsync, close
  uint64_t size_bytes() const { return flushed_ + buffer_.size(); }
  const fs::path& path() const { return path_; }

 private:
  void flush();
  void write_fully(uint64_t offset, const char* data, size_t bytes);
  fs::path path_;
  int fd_ = -1;
  uint64_t flushed_ = 0;
  std::vector<char> buffer_;
};

// Writes beside `path` under a unique name; commit() synchronises, renames over `path` and synchronises the directory.
// Without commit() nothing of it remains.
class AtomicFile {
 public:
  explicit AtomicFile(fs::path path);
  ~AtomicFile();
  OutputFile& file() { return file_; }
  void commit();

 private:
  fs::path path_;
  OutputFile file_;
  bool committed_ = false;
};

// Removes from a directory what AtomicFiles of ended processes left; a missing directory has nothing. Only for its
// owner.
void remove_unfinished_files(const fs::path& directory);

// Holds `path`, a file made for it, against other processes until destroyed or the process ends, however it ends.
// Held by another: kUsage naming it.
class FileLock {
 public:
  explicit FileLock(fs::path path);
  ~FileLock();
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

 private:
  int fd_ = -1;
};

void write_text_file(const fs::path& path, std::string_view text);  // by AtomicFile
void make_directories(const fs::path& path);                        // with parents; an existing directory is fine
bool path_exists(const fs::path& path);                             // kDisk if the system will not say
void rename_path(const fs::path& from, const fs::path& to);
// Puts the directory `from` under the name `to`; one that was there is under `from` afterwards. At no moment is `to`
// missing where the file system can exchange names (ext4, xfs, btrfs, tmpfs, overlayfs).
void exchange_paths(const fs::path& from, const fs::path& to);
void sync_directory(const fs::path& path);
// "<process>-<random>": makes a temporary name unique between processes, hosts and threads.
std::string unique_suffix();

}  // namespace xce

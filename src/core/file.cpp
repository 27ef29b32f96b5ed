#include "src/core/file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <random>
#include <system_error>
#include <utility>

#include "kernels/base/check.h"
#include "src/core/hash.h"

namespace xce {
namespace {

constexpr size_t kBufferBytes = size_t{1} << 20;
constexpr size_t kMaxCallBytes = size_t{1} << 30;  // Linux moves at most 2 GiB in one call

// strerror is not thread-safe; the standard library's category is.
std::string error_text(int error) {
  return std::generic_category().message(error);
}

}  // namespace

void throw_disk_error(std::string_view action, const fs::path& path, int error) {
  throw Error(ErrorCode::kDisk, str("cannot ", action, " ", path.native(), ": ", error_text(error)));
}

InputFile::InputFile(fs::path path) : path_(std::move(path)) {
  // O_NONBLOCK: opening a pipe by mistake must not hang; it changes nothing for regular files.
  fd_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd_ < 0) {
    int error = errno;
    if (error == ENOENT || error == ENOTDIR)
      throw Error(ErrorCode::kUsage, str(path_.native(), ": ", error_text(error)));
    throw_disk_error("open", path_, error);
  }
  struct stat info;
  int status = ::fstat(fd_, &info), error = errno;
  if (status != 0 || !S_ISREG(info.st_mode)) {
    ::close(fd_);
    if (status != 0) throw_disk_error("examine", path_, error);
    throw Error(ErrorCode::kUsage, str(path_.native(), ": not a regular file"));
  }
  size_bytes_ = static_cast<uint64_t>(info.st_size);
}

InputFile::InputFile(InputFile&& other) noexcept
    : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)), size_bytes_(other.size_bytes_) {}

InputFile::~InputFile() {
  if (fd_ >= 0) ::close(fd_);
}

void InputFile::read(uint64_t offset, void* out, size_t bytes) const {
  auto* to = static_cast<char*>(out);
  while (bytes > 0) {
    ssize_t got = ::pread(fd_, to, std::min(bytes, kMaxCallBytes), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw_disk_error("read", path_, errno);
    if (got == 0)
      throw Error(ErrorCode::kCorrupt, str(path_.native(), ": ends at byte ", offset, ", more was expected"));
    to += got, offset += static_cast<uint64_t>(got), bytes -= static_cast<size_t>(got);
  }
}

std::string read_text_file(const fs::path& path, uint64_t max_bytes) {
  InputFile file(path);
  if (file.size_bytes() > max_bytes)
    throw Error(ErrorCode::kCorrupt,
                str(path.native(), ": ", file.size_bytes(), " bytes, at most ", max_bytes, " expected"));
  std::string text(file.size_bytes(), '\0');
  file.read(0, text.data(), text.size());
  return text;
}

OutputFile::OutputFile(fs::path path) : path_(std::move(path)) {
  fd_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (fd_ < 0) throw_disk_error("create", path_, errno);
}

OutputFile::~OutputFile() {
  if (fd_ >= 0) ::close(fd_);
}

void OutputFile::write_fully(uint64_t offset, const char* data, size_t bytes) {
  while (bytes > 0) {
    ssize_t put = ::pwrite(fd_, data, std::min(bytes, kMaxCallBytes), static_cast<off_t>(offset));
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) throw_disk_error("write", path_, put < 0 ? errno : EIO);
    data += put, offset += static_cast<uint64_t>(put), bytes -= static_cast<size_t>(put);
  }
}

void OutputFile::flush() {
  write_fully(flushed_, buffer_.data(), buffer_.size());
  flushed_ += buffer_.size();
  buffer_.clear();
}

void OutputFile::write(const void* data, size_t bytes) {
  XCE_CHECK(fd_ >= 0, "OutputFile still open", path_.native());
  const auto* from = static_cast<const char*>(data);
  if (buffer_.size() + bytes > kBufferBytes) flush();
  if (bytes > kBufferBytes) {
    write_fully(flushed_, from, bytes);
    flushed_ += bytes;
  } else {
    buffer_.insert(buffer_.end(), from, from + bytes);
  }
}

void OutputFile::write_at(uint64_t offset, const void* data, size_t bytes) {
  flush();
  XCE_CHECK(offset <= flushed_ && bytes <= flushed_ - offset, "write_at within the bytes written",
            str(offset, " + ", bytes));
  write_fully(offset, static_cast<const char*>(data), bytes);
}

void OutputFile::finish() {
  flush();
  if (::fsync(fd_) != 0) throw_disk_error("synchronise", path_, errno);
  if (::close(std::exchange(fd_, -1)) != 0) throw_disk_error("close", path_, errno);
}

namespace {
constexpr const char* kTemporaryMark = ".tmp-";
fs::path temporary_beside(const fs::path& path) {
  return path.parent_path() / str(".", path.filename().native(), kTemporaryMark, unique_suffix());
}
fs::path directory_of(const fs::path& path) {
  return path.has_parent_path() ? path.parent_path() : fs::path(".");
}
}  // namespace

AtomicFile::AtomicFile(fs::path path) : path_(std::move(path)), file_(temporary_beside(path_)) {}

AtomicFile::~AtomicFile() {
  if (!committed_) ::unlink(file_.path().c_str());
}

void AtomicFile::commit() {
  file_.finish();
  rename_path(file_.path(), path_);
  committed_ = true;
  sync_directory(directory_of(path_));
}

void remove_unfinished_files(const fs::path& directory) {
  std::error_code ignored;  // a missing directory, or one that others clear at the same time
  for (const fs::directory_entry& entry : fs::directory_iterator(directory, ignored)) {
    std::string name = entry.path().filename().string();
    if (name.front() == '.' && name.find(kTemporaryMark) != std::string::npos) ::unlink(entry.path().c_str());
  }
}

FileLock::FileLock(fs::path path) {
  fd_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (fd_ < 0) throw_disk_error("create", path, errno);
  if (::flock(fd_, LOCK_EX | LOCK_NB) == 0) return;
  int error = errno;
  ::close(fd_);
  if (error != EWOULDBLOCK) throw_disk_error("lock", path, error);
  throw Error(ErrorCode::kUsage, str(path.string(), " is held by another process"));
}
FileLock::~FileLock() {
  ::close(fd_);
}

void write_text_file(const fs::path& path, std::string_view text) {
  AtomicFile out(path);
  out.file().write(text.data(), text.size());
  out.commit();
}

void make_directories(const fs::path& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (error) throw_disk_error("create the directory", path, error.value());
}

void rename_path(const fs::path& from, const fs::path& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) throw_disk_error(str("rename ", from.native(), " to"), to, errno);
}

bool path_exists(const fs::path& path) {
  std::error_code error;
  bool exists = fs::exists(path, error);
  if (error) throw_disk_error("examine", path, error.value());
  return exists;
}

void exchange_paths(const fs::path& from, const fs::path& to) {
  if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_EXCHANGE) == 0) return;
  if (errno == ENOENT) return rename_path(from, to);
  if (errno != EINVAL && errno != ENOSYS) throw_disk_error(str("exchange ", from.native(), " and"), to, errno);
  fs::path aside = temporary_beside(to);
  rename_path(to, aside);
  rename_path(from, to);
  rename_path(aside, from);
}

void sync_directory(const fs::path& path) {
  int fd = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) throw_disk_error("open the directory", path, errno);
  int status = ::fsync(fd), error = errno;
  ::close(fd);
  // Some file systems cannot synchronise a directory and say EINVAL; the rename itself has succeeded.
  if (status != 0 && error != EINVAL) throw_disk_error("synchronise the directory", path, error);
}

std::string unique_suffix() {
  static std::atomic<uint64_t> counter{0};
  std::random_device device;
  uint64_t random = (uint64_t{device()} << 32) ^ device();
  return str(::getpid(), "-", hex64(mix64(random, counter++)));
}

}  // namespace xce

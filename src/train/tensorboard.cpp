// Protobuf's wire format as far as Event needs it: a key is field << 3 | type with type 0 varint, 1 eight bytes, 2
// bytes with a length, 5 four bytes; everything is little-endian. Field numbers are those of
// tensorflow/core/util/event.proto and framework/summary.proto.
#include "src/train/tensorboard.h"

#include <fcntl.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>

#include "kernels/base/check.h"
#include "src/core/crc32c.h"

namespace xce {
namespace {

static_assert(std::endian::native == std::endian::little);

template <class T>
std::string raw_bytes(T value) {
  std::string bytes(sizeof value, '\0');
  std::memcpy(bytes.data(), &value, sizeof value);
  return bytes;
}

std::string varint(uint64_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7) bytes += static_cast<char>(value | 0x80);
  return bytes + static_cast<char>(value);
}

std::string key(int field, int type) {
  return varint(static_cast<uint64_t>(field) << 3 | static_cast<uint64_t>(type));
}
std::string varint_field(int field, int64_t value) {
  return key(field, 0) + varint(static_cast<uint64_t>(value));
}
std::string double_field(int field, double value) {
  return key(field, 1) + raw_bytes(value);
}
std::string bytes_field(int field, const std::string& bytes) {
  return key(field, 2) + varint(bytes.size()) + bytes;
}
std::string float_field(int field, float value) {
  return key(field, 5) + raw_bytes(value);
}

std::string file_version() {
  return bytes_field(3, "brain.Event:2");
}
std::string session_start() {
  return bytes_field(7, varint_field(1, 1));  // session_log { status: START }
}

// One value of a Summary: tag and simple_value.
std::string scalar(const char* tag, double value) {
  return bytes_field(1, bytes_field(1, tag) + float_field(2, static_cast<float>(value)));
}

uint32_t masked_crc(const std::string& bytes) {
  uint32_t crc = crc32c(bytes);
  return ((crc >> 15) | (crc << 17)) + 0xA282EAD8u;
}

std::string framed(const std::string& data) {
  std::string length = raw_bytes(static_cast<uint64_t>(data.size()));
  return length + raw_bytes(masked_crc(length)) + data + raw_bytes(masked_crc(data));
}

double wall_time_s() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// TensorBoard reads a directory's files in the order of their names, so the time leads, to the microsecond.
std::string file_name() {
  char host[256] = "host", time[32];
  ::gethostname(host, sizeof host - 1);
  std::snprintf(time, sizeof time, "%017.6f", wall_time_s());
  return str("events.out.tfevents.", time, ".", host, ".", unique_suffix());
}

}  // namespace

TensorboardWriter::TensorboardWriter(const fs::path& directory, int64_t resumed_step) : path_(directory / file_name()) {
  fd_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0666);
  if (fd_ < 0) throw_disk_error("create", path_, errno);
  write_event(0, file_version());
  if (resumed_step > 0) write_event(resumed_step + 1, session_start());
}

TensorboardWriter::~TensorboardWriter() {
  if (fd_ >= 0) ::close(fd_);
}

void TensorboardWriter::append(const StepRecord& record) {
  std::string summary = scalar("loss", record.loss) + scalar("grad_norm", record.grad_norm) + scalar("lr", record.lr) +
                        scalar("tokens_per_s", record.tokens_per_s);
  if (record.mfu) summary += scalar("mfu", *record.mfu);
  if (record.val_loss) summary += scalar("val_loss", *record.val_loss);
  if (record.bits_per_byte) summary += scalar("bits_per_byte", *record.bits_per_byte);
  write_event(record.step, bytes_field(5, summary));
}

void TensorboardWriter::write_event(int64_t step, const std::string& payload) {
  std::string bytes = framed(double_field(1, wall_time_s()) + varint_field(2, step) + payload);
  for (size_t done = 0; done < bytes.size();) {
    ssize_t put = ::write(fd_, bytes.data() + done, bytes.size() - done);
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) throw_disk_error("write", path_, put < 0 ? errno : EIO);
    done += static_cast<size_t>(put);
  }
}

}  // namespace xce

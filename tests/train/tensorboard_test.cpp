// Event files read back by a small decoder of TFRecord and protobuf that shares nothing with the writer.
#include "src/train/tensorboard.h"

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <iterator>
#include <map>

#include "kernels/base/check.h"
#include "tests/support/temp_dir.h"

namespace xce {
namespace {

// Bit by bit, from the polynomial's definition.
uint32_t reference_masked_crc(const std::string& bytes) {
  uint32_t crc = 0xFFFFFFFFu;
  for (unsigned char byte : bytes) {
    crc ^= byte;
    for (int i = 0; i < 8; ++i) crc = (crc & 1) != 0 ? (crc >> 1) ^ 0x82F63B78u : crc >> 1;
  }
  crc = ~crc;
  return ((crc >> 15) | (crc << 17)) + 0xA282EAD8u;
}

template <class T>
T take(const std::string& bytes, size_t& at) {
  T value{};
  if (at + sizeof value > bytes.size()) throw std::runtime_error("ends early");
  std::memcpy(&value, bytes.data() + at, sizeof value);
  at += sizeof value;
  return value;
}

uint64_t take_varint(const std::string& bytes, size_t& at) {
  uint64_t value = 0;
  for (int shift = 0;; shift += 7) {
    auto byte = take<uint8_t>(bytes, at);
    value |= static_cast<uint64_t>(byte & 0x7F) << shift;
    if (byte < 0x80) return value;
  }
}

// The fields of a message as (number, payload): eight or four raw bytes, a varint widened to eight, or the bytes.
std::vector<std::pair<uint64_t, std::string>> fields_of(const std::string& message) {
  std::vector<std::pair<uint64_t, std::string>> fields;
  for (size_t at = 0; at < message.size();) {
    uint64_t key = take_varint(message, at), type = key & 7, size = 0;
    if (type == 0) {
      uint64_t value = take_varint(message, at);
      fields.emplace_back(key >> 3, std::string(reinterpret_cast<const char*>(&value), 8));
      continue;
    }
    size = type == 1 ? 8 : type == 5 ? 4 : type == 2 ? take_varint(message, at) : throw std::runtime_error("wire type");
    if (size > message.size() - at) throw std::runtime_error("field ends early");
    fields.emplace_back(key >> 3, message.substr(at, size));
    at += size;
  }
  return fields;
}

template <class T>
T as(const std::string& bytes) {
  EXPECT_EQ(bytes.size(), sizeof(T));
  size_t at = 0;
  return take<T>(bytes, at);
}

struct Event {
  double wall_time = 0;
  int64_t step = 0;
  std::string version;
  int64_t session_status = 0;
  std::map<std::string, float> scalars;
};

Event decode(const std::string& data) {
  Event event;
  for (const auto& [number, bytes] : fields_of(data)) {
    if (number == 1) event.wall_time = as<double>(bytes);
    if (number == 2) event.step = as<int64_t>(bytes);
    if (number == 3) event.version = bytes;
    if (number == 7) event.session_status = as<int64_t>(fields_of(bytes).at(0).second);
    if (number != 5) continue;
    for (const auto& [value_number, value] : fields_of(bytes)) {
      EXPECT_EQ(value_number, 1u);
      auto parts = fields_of(value);
      EXPECT_EQ(parts.at(0).first, 1u);
      EXPECT_EQ(parts.at(1).first, 2u);
      event.scalars[parts.at(0).second] = as<float>(parts.at(1).second);
    }
  }
  return event;
}

std::vector<Event> read_events(const fs::path& path) {
  std::ifstream stream(path, std::ios::binary);
  std::string file{std::istreambuf_iterator<char>(stream), {}};
  std::vector<Event> events;
  for (size_t at = 0; at < file.size();) {
    std::string length_bytes = file.substr(at, 8);
    auto length = take<uint64_t>(file, at);
    EXPECT_EQ(take<uint32_t>(file, at), reference_masked_crc(length_bytes));
    std::string data = file.substr(at, length);
    at += length;
    EXPECT_EQ(take<uint32_t>(file, at), reference_masked_crc(data));
    events.push_back(decode(data));
  }
  return events;
}

class TensorboardTest : public testing::Test {
 protected:
  test::TempDir temporary_;
  fs::path dir_ = temporary_.path();
};

TEST_F(TensorboardTest, ScalarsReadBack) {
  TensorboardWriter writer(dir_, 0);
  StepRecord record;
  record.step = 1;
  record.loss = 5.5;
  record.grad_norm = 0.75;
  record.lr = 1e-4;
  record.tokens_per_s = 45000;
  writer.append(record);
  record.step = 300;  // a varint of two bytes
  record.mfu = 0.5;
  record.val_loss = 1.5;
  record.bits_per_byte = 2.125;
  writer.append(record);
  std::vector<Event> events = read_events(writer.path());  // while the writer is still open
  ASSERT_EQ(events.size(), 3u);
  EXPECT_EQ(events[0].version, "brain.Event:2");
  EXPECT_GT(events[0].wall_time, 1.6e9);
  EXPECT_EQ(events[0].session_status, 0);
  std::map<std::string, float> scalars = {
      {"loss", 5.5f}, {"grad_norm", 0.75f}, {"lr", 1e-4f}, {"tokens_per_s", 45000.f}};
  EXPECT_EQ(events[1].step, 1);
  EXPECT_EQ(events[1].scalars, scalars);
  EXPECT_GE(events[1].wall_time, events[0].wall_time);
  scalars.insert({{"mfu", 0.5f}, {"val_loss", 1.5f}, {"bits_per_byte", 2.125f}});
  EXPECT_EQ(events[2].step, 300);
  EXPECT_EQ(events[2].scalars, scalars);
}

TEST_F(TensorboardTest, AResumedRunOpensASessionInAFileOfItsOwn) {
  TensorboardWriter first(dir_, 0);
  TensorboardWriter second(dir_, 100);
  EXPECT_LT(first.path().filename(), second.path().filename());
  EXPECT_EQ(second.path().filename().native().find("events.out.tfevents."), 0u);
  std::vector<Event> events = read_events(second.path());
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0].version, "brain.Event:2");
  EXPECT_EQ(events[1].session_status, 1);
  EXPECT_EQ(events[1].step, 101);
}

TEST_F(TensorboardTest, DiskErrorsAreNamed) {
  try {
    TensorboardWriter writer(dir_ / "missing", 0);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kDisk);
    EXPECT_NE(std::string(error.what()).find("missing/events.out"), std::string::npos);
  }
}

}  // namespace
}  // namespace xce

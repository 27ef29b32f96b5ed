// metrics.jsonl: valid JSON, the same bits back, and no step twice however the run was interrupted.
#include "src/train/metrics.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <fstream>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>

#include "kernels/base/check.h"
#include "tests/support/temp_dir.h"

namespace xce {
namespace {

class MetricsTest : public testing::Test {
 protected:
  std::string content() const {
    std::ifstream stream(path_, std::ios::binary);
    return {std::istreambuf_iterator<char>(stream), {}};
  }
  void write(const std::string& text) const { std::ofstream(path_, std::ios::binary) << text; }
  void append_steps(int64_t resumed, int64_t last) const {
    MetricsWriter writer(path_, resumed);
    for (int64_t step = resumed + 1; step <= last; ++step) writer.append(record(step));
  }
  static StepRecord record(int64_t step) {
    StepRecord r;
    r.step = step;
    r.tokens = step * 2048;
    r.loss = 5.5 / static_cast<double>(step);
    r.grad_norm = 0.1 * static_cast<double>(step);
    r.lr = 1e-4 / 3;
    r.time_ms = 45.25;
    r.tokens_per_s = 45000.5;
    r.memory_bytes = 123456789;
    r.data_wait = 0.01;
    return r;
  }
  static std::string lines(int64_t from, int64_t to) {
    std::string text;
    for (int64_t step = from; step <= to; ++step) text += to_json(record(step)) + "\n";
    return text;
  }

  test::TempDir temporary_;
  fs::path dir_ = temporary_.path(), path_ = dir_ / "metrics.jsonl";
};

TEST_F(MetricsTest, OneLineOfJson) {
  StepRecord r = record(2);
  EXPECT_EQ(
      to_json(r),
      "{\"step\":2,\"tokens\":4096,\"loss\":2.75,\"grad_norm\":0.2,\"lr\":3.3333333333333335e-5,\"time_ms\":45.25,"
      "\"tokens_per_s\":45000.5,\"memory_bytes\":123456789,\"data_wait\":0.01,\"skipped\":0}");
  r.mfu = 0.5;
  r.skipped = 3;
  r.val_loss = 1.5;
  r.bits_per_byte = 2.125;
  nlohmann::json json = nlohmann::json::parse(to_json(r));
  EXPECT_EQ(json.at("mfu"), 0.5);
  EXPECT_EQ(json.at("skipped"), 3);
  EXPECT_EQ(json.at("val_loss"), 1.5);
  EXPECT_EQ(json.at("bits_per_byte"), 2.125);
}

TEST_F(MetricsTest, NotFiniteIsNull) {
  StepRecord r = record(1);
  r.loss = std::numeric_limits<double>::quiet_NaN();
  r.grad_norm = std::numeric_limits<double>::infinity();
  r.val_loss = -std::numeric_limits<double>::infinity();
  nlohmann::json json = nlohmann::json::parse(to_json(r));
  EXPECT_TRUE(json.at("loss").is_null());
  EXPECT_TRUE(json.at("grad_norm").is_null());
  EXPECT_TRUE(json.at("val_loss").is_null());
  MetricsWriter(path_, 0).append(r);
  std::vector<StepRecord> read = read_metrics(path_);
  ASSERT_EQ(read.size(), 1u);
  EXPECT_TRUE(std::isnan(read[0].loss));
  EXPECT_TRUE(std::isnan(read[0].grad_norm));
  ASSERT_TRUE(read[0].val_loss.has_value());
  EXPECT_TRUE(std::isnan(*read[0].val_loss));
  EXPECT_FALSE(read[0].bits_per_byte.has_value());
}

TEST_F(MetricsTest, NumbersReadBackToTheSameBits) {
  std::mt19937_64 random(3);
  std::vector<StepRecord> written;
  MetricsWriter writer(path_, 0);
  for (int i = 1; i <= 500; ++i) {
    auto any = [&] {
      double value = std::bit_cast<double>(random());
      return std::isfinite(value) ? value : 0.1;
    };
    StepRecord r = record(i);
    r.loss = any();
    r.grad_norm = any();
    r.lr = any();
    r.bits_per_byte = any();
    writer.append(r);
    written.push_back(r);
  }
  std::vector<StepRecord> read = read_metrics(path_);
  ASSERT_EQ(read.size(), written.size());
  for (size_t i = 0; i < read.size(); ++i) {
    EXPECT_EQ(std::bit_cast<uint64_t>(read[i].loss), std::bit_cast<uint64_t>(written[i].loss));
    EXPECT_EQ(std::bit_cast<uint64_t>(read[i].grad_norm), std::bit_cast<uint64_t>(written[i].grad_norm));
    EXPECT_EQ(std::bit_cast<uint64_t>(read[i].lr), std::bit_cast<uint64_t>(written[i].lr));
    EXPECT_EQ(read[i].bits_per_byte, written[i].bits_per_byte);
    EXPECT_EQ(read[i].step, written[i].step);
    EXPECT_EQ(read[i].tokens, written[i].tokens);
    EXPECT_EQ(read[i].memory_bytes, written[i].memory_bytes);
  }
}

TEST_F(MetricsTest, LinesAreInTheFileAtOnce) {
  MetricsWriter writer(path_, 0);
  writer.append(record(1));
  EXPECT_EQ(content(), lines(1, 1));
  writer.append(record(2));
  writer.sync();
  EXPECT_EQ(content(), lines(1, 2));
}

TEST_F(MetricsTest, ResumeGoesOnWithoutDoubledSteps) {
  append_steps(0, 7);
  append_steps(4, 9);
  EXPECT_EQ(content(), lines(1, 9));
  append_steps(9, 9);
  EXPECT_EQ(content(), lines(1, 9));
  append_steps(20, 21);  // a gap is the run's affair
  EXPECT_EQ(content(), lines(1, 9) + lines(21, 21));
}

TEST_F(MetricsTest, ANewRunStartsEmpty) {
  append_steps(0, 5);
  append_steps(0, 2);
  EXPECT_EQ(content(), lines(1, 2));
}

TEST_F(MetricsTest, TornLastLineIsCut) {
  std::string torn = to_json(record(4)).substr(0, 20);
  for (const std::string& tail : {torn, std::string("{"), std::string(5, '\0'), torn + "\n", std::string("\n")}) {
    write(lines(1, 3) + tail);
    EXPECT_EQ(read_metrics(path_).size(), 3u);
    append_steps(3, 4);
    EXPECT_EQ(content(), lines(1, 4));
  }
  write(lines(1, 3) + to_json(record(4)));  // whole but for its end
  append_steps(4, 5);
  EXPECT_EQ(content(), lines(1, 5));
}

TEST_F(MetricsTest, OtherDamageIsNamed) {
  for (const char* wrong : {"hello", "", "{\"step\":\"2\"}", "[]"}) {
    write(lines(1, 1) + wrong + "\n" + lines(3, 3));
    try {
      MetricsWriter writer(path_, 3);
      FAIL() << wrong;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kCorrupt);
      EXPECT_EQ(error.what(), path_.string() + ":2: not a metrics record");
    }
  }
}

TEST_F(MetricsTest, DiskErrorsAreNamed) {
  try {
    MetricsWriter writer(dir_ / "missing" / "metrics.jsonl", 0);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kDisk);
    EXPECT_NE(std::string(error.what()).find("missing/metrics.jsonl"), std::string::npos);
  }
}

}  // namespace
}  // namespace xce

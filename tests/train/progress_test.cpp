// Lines and bars, character by character, and when they appear.
#include "src/train/progress.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <limits>

#include "src/core/log.h"

namespace xce {
namespace {

StepRecord record_at(int64_t step) {
  StepRecord record;
  record.step = step;
  record.loss = 2.34567;
  record.grad_norm = 0.8124;
  record.lr = 4e-3;
  record.time_ms = 45.25;
  record.tokens_per_s = 45312.4;
  record.memory_bytes = 222613504;
  record.data_wait = 0.001;
  return record;
}

TEST(ProgressTest, StepLine) {
  StepRecord record = record_at(150);
  EXPECT_EQ(step_line(record, 1500),
            "step  150/1500  loss 2.3457  norm 0.812  lr 4.00e-03  45.2 ms  45312 tok/s  mem 212.3 MiB  data 0.1%");
  record.mfu = 0.412;
  record.skipped = 2;
  record.val_loss = 1.5;
  record.bits_per_byte = 2.164;
  record.loss = std::nan("");
  EXPECT_EQ(
      step_line(record, 1500),
      "step  150/1500  loss nan  norm 0.812  lr 4.00e-03  45.2 ms  45312 tok/s  MFU 41.2%  mem 212.3 MiB  data 0.1%"
      "  skipped 2  val_loss 1.5000 (2.1640 bits/byte)");
}

TEST(ProgressTest, BarFillsTheWidthItIsGiven) {
  std::string text = "  50%  step  750/1500  loss 2.3457  45312 tok/s  eta 0:40";
  EXPECT_EQ(progress_bar(record_at(750), 1500, 40, static_cast<int>(text.size()) + 13), "[=====>    ]" + text);
  EXPECT_EQ(progress_bar(record_at(750), 1500, 40, 200),
            "[" + std::string(20, '=') + ">" + std::string(19, ' ') + "]" + text);
  EXPECT_EQ(progress_bar(record_at(750), 1500, 40, 10), text.substr(1));
  std::string full = progress_bar(record_at(1500), 1500, 0, 200);
  EXPECT_EQ(full.substr(0, 49), "[" + std::string(40, '=') + "] 100%  ");
  EXPECT_EQ(progress_bar(record_at(0), 1500, 0, 200).substr(0, 42), "[>" + std::string(39, ' ') + "]");
}

TEST(ProgressTest, DurationsAndMemory) {
  EXPECT_EQ(format_duration(0), "0:00");
  EXPECT_EQ(format_duration(59.6), "1:00");
  EXPECT_EQ(format_duration(3599), "59:59");
  EXPECT_EQ(format_duration(3723), "1:02:03");
  EXPECT_EQ(format_duration(3 * 86400 + 3723), "3d 01:02:03");
  EXPECT_EQ(format_duration(std::nan("")), "?");
  EXPECT_EQ(format_duration(std::numeric_limits<double>::infinity()), "?");
  EXPECT_EQ(format_memory(512 << 10), "0.5 MiB");
  EXPECT_EQ(format_memory(int64_t{3} << 29), "1.50 GiB");
}

// What a sequence of steps writes.
class ProgressOutput : public testing::Test {
 protected:
  template <class Body>
  std::string written(bool terminal, Body body) {
    std::FILE* stream = std::tmpfile();
    start_log({stream, terminal, false, false});
    body();
    start_log({});
    std::string text(static_cast<size_t>(std::ftell(stream)), '\0');
    std::rewind(stream);
    EXPECT_EQ(std::fread(text.data(), 1, text.size(), stream), text.size());
    std::fclose(stream);
    return text;
  }
};

TEST_F(ProgressOutput, LinesComeInTurnWithFirstLastAndValidation) {
  std::string text = written(false, [] {
    Progress progress({.steps = 25, .first_step = 3, .every = 10});
    for (int64_t step = 4; step <= 25; ++step) {
      StepRecord record = record_at(step);
      if (step == 7) record.val_loss = 1.5;
      progress.show(record);
    }
  });
  std::string expected;
  for (int64_t step : {4, 7, 10, 20, 25}) {
    StepRecord record = record_at(step);
    if (step == 7) record.val_loss = 1.5;
    expected += step_line(record, 25) + "\n";
  }
  EXPECT_EQ(text, expected);
}

TEST_F(ProgressOutput, TerminalShowsABarAndNoLines) {
  std::string text = written(true, [] {
    Progress progress({.steps = 100, .first_step = 0, .every = 1});
    for (int64_t step = 1; step <= 6; ++step) progress.show(record_at(step));
  });
  // 45.25 ms a step: drawn at the first, then whenever 100 ms have gone, the fourth being the next; then taken away.
  std::string erase = "\r\x1b[K";
  EXPECT_EQ(text, erase + progress_bar(record_at(1), 100, 99 * 0.04525, 79) + erase +
                      progress_bar(record_at(4), 100, 96 * 0.04525, 79) + erase);
}

TEST_F(ProgressOutput, TimeLimitBoundsTheTimeLeft) {
  std::string text = written(true, [] {
    Progress progress({.steps = 100000, .first_step = 0, .every = 1, .max_minutes = 2});
    progress.show(record_at(1));
  });
  EXPECT_NE(text.find("eta 2:00"), std::string::npos) << text;
}

}  // namespace
}  // namespace xce

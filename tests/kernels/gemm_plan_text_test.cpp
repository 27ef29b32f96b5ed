// The text of GEMM plans: it restores every choice, and damage anywhere is an error with its line.
#include "kernels/cuda/gemm_plan_text.h"

#include <gtest/gtest.h>

#include <string>

#include "tests/support/errors.h"

namespace xce::cuda {
namespace {

GemmPlanText sample() {
  GemmPlanText plans{.machine = "Some GPU, compute capability 9.0, 132 SMs, cuBLASLt 130101", .choices = {}};
  GemmShape shape{.m = 4096,
                  .n = 128256,
                  .k = 2048,
                  .lda = 2048,
                  .ldb = 2049,
                  .ldc = int64_t{1} << 40,
                  .trans_a = false,
                  .trans_b = true,
                  .in = DType::kBf16,
                  .out = DType::kF32,
                  .addend = 0,
                  .alignment = 16};
  GemmChoice choice{.algorithm = {}, .raced = true, .ms = 6.29042, .first_ms = 6.61713};
  for (size_t i = 0; i < choice.algorithm.size(); ++i) choice.algorithm[i] = static_cast<unsigned char>(i * 37 + 250);
  plans.choices[shape] = choice;
  shape.trans_a = true, shape.trans_b = false, shape.addend = 1, shape.alignment = 2;
  plans.choices[shape] = {.algorithm = choice.algorithm};
  shape.in = shape.out = DType::kF64, shape.addend = 2;
  choice.ms = 1e-4, choice.algorithm[63] ^= 1;
  plans.choices[shape] = choice;
  return plans;
}

std::string replaced(std::string text, const std::string& what, const std::string& by) {
  const size_t at = text.find(what);
  EXPECT_NE(at, std::string::npos) << what;
  return at == std::string::npos ? text : text.replace(at, what.size(), by);
}

TEST(GemmPlanText, RestoresEveryChoice) {
  for (const GemmPlanText& plans : {sample(), GemmPlanText{.machine = "none yet", .choices = {}}}) {
    const std::string text = to_text(plans);
    const GemmPlanText read = plans_from_text(text, "plans.txt");
    EXPECT_EQ(read.machine, plans.machine);
    EXPECT_EQ(read.choices, plans.choices);
    EXPECT_EQ(to_text(read), text);
  }
}

TEST(GemmPlanText, IsReadable) {
  const std::string text = to_text(sample());
  EXPECT_EQ(
      text.substr(0, text.find(" algorithm ")),
      "xce gemm plans 1\n"
      "machine Some GPU, compute capability 9.0, 132 SMs, cuBLASLt 130101\n"
      "m 4096 n 128256 k 2048 lda 2048 ldb 2049 ldc 1099511627776 a plain b transposed in bf16 out fp32 addend none "
      "align 16 chosen raced ms 6.29042 first_ms 6.61713");
}

TEST(GemmPlanText, AnotherVersionIsNobodysMachine) {
  EXPECT_EQ(plans_from_text("xce gemm plans 2\nwhatever follows", "plans.txt").machine, "");
}

TEST(GemmPlanText, DamageIsNamedWithItsLine) {
  const std::string good = to_text(sample());
  auto damaged = [&](const std::string& text, const std::string& line, const std::string& what) {
    return test::throws_error(ErrorCode::kCorrupt, {"plans.txt:" + line + ":", what},
                              [&] { plans_from_text(text, "plans.txt"); });
  };
  EXPECT_TRUE(damaged("", "1", "missing"));
  EXPECT_TRUE(damaged("some other file\n", "1", "xce gemm plans"));
  EXPECT_TRUE(damaged(replaced(good, "machine", "engine"), "2", "engine"));
  EXPECT_TRUE(damaged(replaced(good, "m 4096", "m 4o96"), "3", "m '4o96'"));
  EXPECT_TRUE(damaged(replaced(good, "m 4096", "m -4096"), "3", "m '-4096'"));
  EXPECT_TRUE(damaged(replaced(good, "m 4096", "m 99999999999999999999"), "3", "m '99999999999999999999'"));
  EXPECT_TRUE(damaged(replaced(good, "in bf16", "in fp16"), "3", "fp16"));
  EXPECT_TRUE(damaged(replaced(good, "raced", "guessed"), "3", "guessed"));
  EXPECT_TRUE(damaged(replaced(good, "ms 6.29042", "ms nan"), "3", "ms 'nan'"));
  EXPECT_TRUE(damaged(replaced(good, "algorithm fa", "algorithm ga"), "3", "'g'"));
  EXPECT_TRUE(damaged(replaced(good, "algorithm fa", "algorithm a"), "3", "127 digits"));
  EXPECT_TRUE(damaged(replaced(good, "\nend", " more\nend"), "5", "'more'"));
  EXPECT_TRUE(damaged(replaced(good, "end 3", "end 2"), "6", "not 3 shapes"));
  EXPECT_TRUE(damaged(replaced(good, "m 4096", "m 4097"), "6", "checksum"));
  EXPECT_TRUE(damaged(good + "\n", "6", "more after"));
  const size_t line3 = good.find("m 4096"), line4 = good.find("m 4096", line3 + 1);
  EXPECT_TRUE(damaged(good.substr(0, line4) + good.substr(line3), "4", "twice"));
}

TEST(GemmPlanText, EveryTruncationIsAnError) {
  const std::string good = to_text(sample());
  for (size_t length = 0; length < good.size(); ++length)
    EXPECT_TRUE(test::throws_error(ErrorCode::kCorrupt, {"plans.txt:"}, [&] {
      plans_from_text(good.substr(0, length), "plans.txt");
    })) << length;
}

TEST(GemmPlanText, EveryFlippedBitOfAChoiceIsAnError) {
  std::string text = to_text(sample());
  for (size_t i = text.find("machine"); i < text.size(); ++i) {
    text[i] ^= 4;
    EXPECT_TRUE(test::throws_error(ErrorCode::kCorrupt, {"plans.txt:"}, [&] { plans_from_text(text, "plans.txt"); }))
        << i;
    text[i] ^= 4;
  }
}

}  // namespace
}  // namespace xce::cuda

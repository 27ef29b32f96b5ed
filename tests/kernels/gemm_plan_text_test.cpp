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
                  .tf32 = false,
                  .has_alpha = false,
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

// Shapes that differ from one of sample()'s in what is multiplied and how, each with an algorithm of its own.
GemmPlanText products() {
  GemmPlanText plans{.machine = "Some GPU", .choices = {}};
  GemmShape shape = sample().choices.begin()->first;
  auto add = [&](DType in, DType out, bool tf32, bool has_alpha) {
    shape.in = in, shape.out = out, shape.tf32 = tf32, shape.has_alpha = has_alpha;
    plans.choices[shape].algorithm.fill(static_cast<unsigned char>(plans.choices.size()));
  };
  for (bool has_alpha : {false, true}) {
    add(DType::kF16, DType::kF32, false, has_alpha), add(DType::kF16, DType::kF16, false, has_alpha);
    add(DType::kF32, DType::kF32, false, has_alpha), add(DType::kF32, DType::kF32, true, has_alpha);
  }
  return plans;
}

std::string replaced(std::string text, const std::string& what, const std::string& by) {
  const size_t at = text.find(what);
  EXPECT_NE(at, std::string::npos) << what;
  return at == std::string::npos ? text : text.replace(at, what.size(), by);
}

TEST(GemmPlanText, RestoresEveryChoice) {
  for (const GemmPlanText& plans : {sample(), products(), GemmPlanText{.machine = "none yet", .choices = {}}}) {
    const std::string text = to_text(plans);
    const GemmPlanText read = plans_from_text(text, "plans.txt");
    EXPECT_EQ(read.machine, plans.machine);
    EXPECT_EQ(read.choices, plans.choices);
    EXPECT_EQ(to_text(read), text);
  }
}

TEST(GemmPlanText, KindsOfProductsAreApart) {
  const std::map<GemmShape, GemmChoice> kinds = products().choices;
  ASSERT_EQ(kinds.size(), 8u);
  for (const auto& [shape, choice] : plans_from_text(to_text(products()), "plans.txt").choices)
    EXPECT_EQ(choice.algorithm, kinds.at(shape).algorithm) << describe(shape);
}

TEST(GemmPlanText, IsReadable) {
  const std::string text = to_text(sample());
  EXPECT_EQ(
      text.substr(0, text.find(" algorithm ")),
      "xce gemm plans 2\n"
      "machine Some GPU, compute capability 9.0, 132 SMs, cuBLASLt 130101\n"
      "m 4096 n 128256 k 2048 lda 2048 ldb 2049 ldc 1099511627776 a plain b transposed in bf16 out fp32 compute plain "
      "alpha one addend none align 16 chosen raced ms 6.29042 first_ms 6.61713");
}

TEST(GemmPlanText, AnotherVersionIsNobodysMachine) {
  for (const char* version : {"1", "3"})
    EXPECT_EQ(plans_from_text(str("xce gemm plans ", version, "\nwhatever follows"), "plans.txt").machine, "");
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
  EXPECT_TRUE(damaged(replaced(good, "in bf16", "in fp8"), "3", "fp8"));
  EXPECT_TRUE(damaged(replaced(good, "compute plain", "compute fp32"), "3", "fp32"));
  EXPECT_TRUE(damaged(replaced(good, "alpha one", "alpha two"), "3", "two"));
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

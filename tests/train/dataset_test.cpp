#include "src/train/dataset.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "kernels/base/check.h"
#include "src/data/token_file.h"
#include "tests/support/errors.h"
#include "tests/support/temp_dir.h"

namespace xce {
namespace {

std::vector<int32_t> all(const TokenSource& source) {
  std::vector<int32_t> ids(static_cast<size_t>(source.size()));
  source.read(0, ids);
  return ids;
}

Config markov() {
  Config config;
  config.data.kind = DataKind::kMarkov;
  config.data.markov_states = 8;
  config.data.generated_tokens = 40000;
  config.data.val_fraction = 0.5;
  config.run.seed = 3;
  return config;
}

// Empirical probabilities of the next id.
std::vector<double> transitions(const TokenSource& source) {
  std::vector<double> count(64, 0), from(8, 0);
  std::vector<int32_t> ids = all(source);
  for (size_t i = 0; i + 1 < ids.size(); ++i) {
    ++count[static_cast<size_t>(ids[i] * 8 + ids[i + 1])];
    ++from[static_cast<size_t>(ids[i])];
  }
  for (size_t i = 0; i < 64; ++i) count[i] /= from[i / 8];
  return count;
}
double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i) largest = std::fmax(largest, std::fabs(a[i] - b[i]));
  return largest;
}

TEST(Dataset, AMarkovValidationOfNoTokensNamesItsKey) {
  Config config = markov();
  config.data.val_fraction = 1e-5;
  EXPECT_TRUE(
      test::throws_error(ErrorCode::kUsage, {"data.val_fraction", "1e-05", "40000"}, [&] { open_dataset(config); }));
  config.data.val_fraction = 2.5e-5;  // one token
  EXPECT_EQ(open_dataset(config).validation->size(), 1);
}

TEST(Dataset, MarkovValidationIsAnotherPathOfTheSameChain) {
  Config config = markov();
  Dataset set = open_dataset(config);
  EXPECT_EQ(config.model.vocab_size, 8);
  ASSERT_TRUE(set.validation);
  EXPECT_EQ(set.train->size(), 40000);
  EXPECT_EQ(set.validation->size(), 20000);
  std::vector<int32_t> train = all(*set.train), validation = all(*set.validation);
  int equal = 0;
  for (size_t i = 0; i < validation.size(); ++i) equal += train[i] == validation[i];
  EXPECT_LT(equal, 0.5 * static_cast<double>(validation.size())) << "another path";
  EXPECT_LT(largest_difference(transitions(*set.train), transitions(*set.validation)), 0.06) << "the same chain";
  ASSERT_TRUE(set.entropy_nats);
  EXPECT_GT(*set.entropy_nats, 0.3);
  EXPECT_LT(*set.entropy_nats, std::log(8.0));

  config.run.seed = 4;
  Dataset other = open_dataset(config);
  EXPECT_GT(largest_difference(transitions(*set.train), transitions(*other.train)), 0.06) << "another chain";
}

TEST(Dataset, WithoutAFractionThereIsNoValidation) {
  Config config = markov();
  config.data.val_fraction = 0;
  EXPECT_FALSE(open_dataset(config).validation);
}

TEST(Dataset, BytesSplitByPositionOrByFile) {
  test::TempDir dir;
  test::write_file(dir / "text.txt", "0123456789");
  test::write_file(dir / "val.txt", "val");
  Config config;
  config.data.kind = DataKind::kBytes;
  config.data.train = (dir / "text.txt").string();
  Dataset whole = open_dataset(config);
  EXPECT_EQ(config.model.vocab_size, 256);
  EXPECT_EQ(whole.train->size(), 10);
  EXPECT_FALSE(whole.validation);
  EXPECT_FALSE(whole.entropy_nats);

  config.data.val_fraction = 0.2;
  Dataset split = open_dataset(config);
  EXPECT_EQ(all(*split.train), (std::vector<int32_t>{'0', '1', '2', '3', '4', '5', '6', '7'}));
  EXPECT_EQ(all(*split.validation), (std::vector<int32_t>{'8', '9'}));

  config.data.val = (dir / "val.txt").string();
  Dataset by_file = open_dataset(config);
  EXPECT_EQ(by_file.train->size(), 10);
  EXPECT_EQ(all(*by_file.validation), (std::vector<int32_t>{'v', 'a', 'l'}));
}

TEST(Dataset, AVocabularyTooSmallForTheDataIsRefused) {
  test::TempDir dir;
  test::write_file(dir / "text.txt", "0123456789");
  Config config;
  config.data.kind = DataKind::kBytes;
  config.data.train = (dir / "text.txt").string();
  config.model.vocab_size = 255;
  EXPECT_TRUE(test::throws_error(ErrorCode::kUsage, {"model.vocab_size", "255", "256"}, [&] { open_dataset(config); }));
  config.model.vocab_size = 300;
  EXPECT_EQ(open_dataset(config).train->vocab_size(), 256);
  EXPECT_EQ(config.model.vocab_size, 300) << "a larger one is the user's choice";
}

TEST(Dataset, AMissingFileIsAUsageError) {
  Config config;
  config.data.kind = DataKind::kBytes;
  config.data.train = "/no/such/file.txt";
  EXPECT_TRUE(test::throws_error(ErrorCode::kUsage, {"/no/such/file.txt"}, [&] { open_dataset(config); }));
}

TEST(Dataset, AMissingTokenFileNamesItsKeyAndTheCommandThatMakesOne) {
  test::TempDir dir;
  {
    TokenFileWriter writer(dir / "here.tok", 300);
    writer.append(std::vector<int32_t>{1, 299, 7});
    writer.commit();
  }
  Config config;
  config.data.kind = DataKind::kTokens;
  config.data.train = (dir / "missing.tok").string();
  EXPECT_TRUE(test::throws_error(ErrorCode::kUsage, {"data.train", "missing.tok", "tools/prepare_data.sh"},
                                 [&] { open_dataset(config); }));
  config.data.train = (dir / "here.tok").string();
  EXPECT_EQ(all(*open_dataset(config).train), (std::vector<int32_t>{1, 299, 7}));
  config.data.val = (dir / "missing.tok").string();
  EXPECT_TRUE(test::throws_error(ErrorCode::kUsage, {"data.val", "missing.tok", "tools/prepare_data.sh"},
                                 [&] { open_dataset(config); }));
}

TEST(Dataset, SyntheticIdsFillTheGivenVocabulary) {
  Config config;
  config.data.kind = DataKind::kSynthetic;
  config.data.generated_tokens = 500;
  config.model.vocab_size = 10;
  Dataset set = open_dataset(config);
  EXPECT_EQ(set.train->size(), 500);
  std::vector<int> seen(10, 0);
  for (int32_t id : all(*set.train)) ++seen[static_cast<size_t>(id)];
  for (int count : seen) EXPECT_GT(count, 20);
}

}  // namespace
}  // namespace xce

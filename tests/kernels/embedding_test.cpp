// Rows copied and summed one by one in the test, with repeated and unknown ids.
#include "kernels/embedding.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "tests/support/array.h"
#include "tests/support/compare.h"
#include "tests/support/execs.h"

namespace xce {
namespace {

using test::Array;

constexpr int64_t kVocab = 37;
const DType kDTypes[] = {DType::kF32, DType::kBf16, DType::kF64};

struct Shape {
  int64_t rows, hidden;
};
const Shape kShapes[] = {{0, 5}, {1, 1}, {7, 31}, {31, 7}, {127, 33}, {300, 128}, {1025, 40}, {9001, 8}};

// Ids with many repeats; every 11th lies outside the vocabulary.
test::Vector<int32_t> tokens_of(int64_t rows) {
  std::mt19937 gen(5);
  test::Vector<int32_t> tokens(rows);
  for (int64_t r = 0; r < rows; ++r)
    tokens[r] = r % 11 == 10 ? (r % 2 ? -1 : kVocab) : static_cast<int32_t>(gen() % 9 * 4);
  return tokens;
}
bool known(int32_t token) {
  return token >= 0 && token < kVocab;
}

Array backward(const Exec& exec, const Array& dy, const test::Vector<int32_t>& tokens, Array dweight, bool accumulate) {
  int64_t rows = tokens.size(), hidden = dweight.size() / kVocab;
  run(exec, EmbeddingBackward{dy.data(), tokens.data(), dweight.data(), rows, kVocab, hidden, dy.dtype(), accumulate});
  return dweight;
}

TEST(Embedding, ForwardCopiesRowsAndZeroesUnknownIds) {
  for (DType dtype : kDTypes)
    for (const Exec& exec : test::all_execs())
      for (auto [rows, hidden] : kShapes) {
        Array weight = Array::normal(dtype, kVocab * hidden, 1), y(dtype, rows * hidden);
        test::Vector<int32_t> tokens = tokens_of(rows);
        run(exec, EmbeddingForward{weight.data(), tokens.data(), y.data(), rows, kVocab, hidden, dtype});
        for (int64_t r = 0; r < rows; ++r)
          for (int64_t i = 0; i < hidden; ++i)
            ASSERT_EQ(y[r * hidden + i], known(tokens[r]) ? weight[tokens[r] * hidden + i] : 0.0) << r << " " << i;
        EXPECT_TRUE(y.guards_intact());
      }
}

TEST(Embedding, BackwardSumsEachTokensRows) {
  for (DType dtype : kDTypes)
    for (const Exec& exec : test::all_execs())
      for (auto [rows, hidden] : kShapes)
        for (bool accumulate : {false, true}) {
          Array dy = Array::normal(dtype, rows * hidden, 2);
          test::Vector<int32_t> tokens = tokens_of(rows);
          Array before = accumulate ? Array::normal(accum_dtype(dtype), kVocab * hidden, 3)
                                    : Array(accum_dtype(dtype), kVocab * hidden);
          std::vector<double> want(kVocab * hidden, 0.0);
          if (accumulate) want = before.values();
          for (int64_t r = 0; r < rows; ++r)
            for (int64_t i = 0; i < hidden && known(tokens[r]); ++i) want[tokens[r] * hidden + i] += dy[r * hidden + i];
          Array got = backward(exec, dy, tokens, before, accumulate);
          EXPECT_TRUE(test::close(got, want, test::tolerance(accum_dtype(dtype)))) << rows << "x" << hidden;
        }
}

TEST(Embedding, BackwardHasTheSameBitsForAnyNumberOfThreads) {
  const int64_t rows = 1025, hidden = 200;
  test::Vector<int32_t> tokens = tokens_of(rows);
  for (DType dtype : kDTypes) {
    Array dy = Array::normal(dtype, rows * hidden, 4), empty(accum_dtype(dtype), kVocab * hidden);
    Array one = backward(test::cpu_exec(1), dy, tokens, empty, false);
    EXPECT_TRUE(backward(test::cpu_exec(1), dy, tokens, empty, false).same_bits(one));
    EXPECT_TRUE(backward(test::cpu_exec(2), dy, tokens, empty, false).same_bits(one));
    EXPECT_TRUE(backward(test::cpu_exec(3), dy, tokens, empty, false).same_bits(one));
  }
}

TEST(Embedding, RejectsBadArguments) {
  Exec exec = test::cpu_exec(1);
  Array weight = Array::normal(DType::kF32, kVocab, 1), y(DType::kF32, 1);
  int32_t token = 0;
  EXPECT_THROW(run(exec, EmbeddingForward{weight.data(), &token, y.data(), -1, kVocab, 1, DType::kF32}), Error);
  EXPECT_THROW(run(exec, EmbeddingForward{nullptr, &token, y.data(), 1, kVocab, 1, DType::kF32}), Error);
  EXPECT_THROW(run(exec, EmbeddingForward{weight.data(), &token, y.data(), 1, 0, 1, DType::kF32}), Error);
  EXPECT_THROW(run(exec, EmbeddingBackward{y.data(), &token, weight.data(), 1, kVocab, 0, DType::kF32}), Error);
  EXPECT_THROW(run(exec, EmbeddingBackward{y.data(), nullptr, weight.data(), 1, kVocab, 1, DType::kF32}), Error);
}

}  // namespace
}  // namespace xce

// Name distances against hand-counted edits.
#include "src/core/suggest.h"

#include <gtest/gtest.h>

namespace xce {
namespace {

TEST(SuggestTest, CountsEdits) {
  EXPECT_EQ(edit_distance("", ""), 0);
  EXPECT_EQ(edit_distance("abc", ""), 3);
  EXPECT_EQ(edit_distance("", "abc"), 3);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3);
  EXPECT_EQ(edit_distance("hidden_size", "hiden_size"), 1);
  EXPECT_EQ(edit_distance("model", "mdoel"), 1);
  EXPECT_EQ(edit_distance("Hidden-Size", "hidden_size"), 0);
  EXPECT_EQ(edit_distance("ca", "abc"), 3);  // 2 with edits inside a swapped pair, which this distance does not know
}

TEST(SuggestTest, TakesTheNearestWithinAThirdOfTheName) {
  std::vector<std::string> names = {"seed", "steps", "seq_len", "lr"};
  EXPECT_EQ(nearest_name("sed", names), "seed");
  EXPECT_EQ(nearest_name("stps", names), "steps");
  EXPECT_EQ(nearest_name("seqlen", names), "seq_len");
  EXPECT_EQ(nearest_name("rl", names), "lr");
  EXPECT_EQ(nearest_name("banana", names), "");
  EXPECT_EQ(nearest_name("xy", names), "");
  EXPECT_EQ(nearest_name("", names), "");
  EXPECT_EQ(nearest_name("seed", {}), "");
}

}  // namespace
}  // namespace xce

#include "src/io/json.h"

#include <gtest/gtest.h>

#include "tests/support/errors.h"

namespace xce {
namespace {

TEST(ParseJson, AcceptsObjects) {
  auto json = parse_json(R"({"a": {"x": 1}, "b": {"x": [{"x": 2}]}})", "text");
  EXPECT_EQ(json["b"]["x"][0]["x"], 2);
}

TEST(ParseJson, Refuses) {
  auto refused = [](const std::string& text, const std::string& word) {
    return test::throws_error(ErrorCode::kCorrupt, {"config.json: ", word}, [&] { parse_json(text, "config.json"); });
  };
  EXPECT_TRUE(refused("[1]", "object"));
  EXPECT_TRUE(refused("", "not JSON"));
  EXPECT_TRUE(refused("{\"a\": 1,}", "not JSON"));
  EXPECT_TRUE(refused("{\"a\": 1e999}", "not JSON"));
  EXPECT_TRUE(refused(R"({"a": 1, "b": 2, "a": 3})", "\"a\" occurs twice"));
  EXPECT_TRUE(refused(R"({"o": {"a": 1, "\u0061": 3}})", "\"a\" occurs twice"));
  EXPECT_TRUE(refused("{\"a\":" + std::string(100, '[') + std::string(100, ']') + "}", "nested"));
}

}  // namespace
}  // namespace xce

// The tree that YAML text becomes: kinds, text and places; and what counts as UTF-8.
#include "src/core/config_yaml.h"

#include <gtest/gtest.h>

namespace xce {
namespace {

using Kind = YamlNode::Kind;

void expect_place(int line, int column, int expected_line, int expected_column) {
  EXPECT_EQ(line, expected_line);
  EXPECT_EQ(column, expected_column);
}

TEST(ConfigYamlTest, EveryKindWithItsPlace) {
  YamlNode root =
      parse_yaml_map("# comment\na: 1e-4\nb:\n  c: 'it''s'\n  d: [1, {x: 2}]\ne: ~\n\"f\": {g: \"\"}\n", "f.yaml");
  ASSERT_EQ(root.kind, Kind::kMap);
  ASSERT_EQ(root.entries.size(), 4u);
  const YamlEntry &a = root.entries[0], &b = root.entries[1], &e = root.entries[2], &f = root.entries[3];
  EXPECT_EQ(a.key, "a");
  expect_place(a.line, a.column, 2, 1);
  EXPECT_EQ(a.value.kind, Kind::kScalar);
  EXPECT_EQ(a.value.text, "1e-4");
  expect_place(a.value.line, a.value.column, 2, 4);
  ASSERT_EQ(b.value.kind, Kind::kMap);
  ASSERT_EQ(b.value.entries.size(), 2u);
  EXPECT_EQ(b.value.entries[0].value.text, "it's");
  expect_place(b.value.entries[0].line, b.value.entries[0].column, 4, 3);
  expect_place(b.value.entries[0].value.line, b.value.entries[0].value.column, 4, 6);
  EXPECT_EQ(b.value.entries[1].value.kind, Kind::kList);
  expect_place(b.value.entries[1].value.line, b.value.entries[1].value.column, 5, 6);
  EXPECT_EQ(e.value.kind, Kind::kNull);
  EXPECT_EQ(f.key, "f");
  ASSERT_EQ(f.value.entries.size(), 1u);
  EXPECT_EQ(f.value.entries[0].value.kind, Kind::kScalar);
  EXPECT_EQ(f.value.entries[0].value.text, "");
}

TEST(ConfigYamlTest, ColumnsCountBytes) {
  YamlNode root = parse_yaml_map("\xC3\xA9\xC3\xA9: x\n", "f.yaml");
  EXPECT_EQ(root.entries.at(0).key, "\xC3\xA9\xC3\xA9");
  EXPECT_EQ(root.entries.at(0).value.column, 7);
}

TEST(ConfigYamlTest, InvalidUtf8) {
  for (const char* good :
       {"", "abc", "\xC3\xA9", "\xE2\x82\xAC", "\xF0\x9F\x98\x80", "\xF4\x8F\xBF\xBF", "\xED\x9F\xBF"}) {
    EXPECT_EQ(find_invalid_utf8(good), std::string::npos) << good;
  }
  // Stray continuation, overlong forms, surrogate, above U+10FFFF, cut short, bytes that never occur.
  for (const char* bad :
       {"\x80", "\xC0\x80", "\xC1\xBF", "\xE0\x9F\xBF", "\xF0\x8F\xBF\xBF", "\xED\xA0\x80", "\xF4\x90\x80\x80", "\xC3",
        "\xE2\x82", "\xF0\x9F\x98", "\xF5\x80\x80\x80", "\xFE", "\xFF", "\xC3(", "\xE2\x82("}) {
    EXPECT_EQ(find_invalid_utf8(std::string("ab") + bad), 2u);
    EXPECT_EQ(find_invalid_utf8(std::string("\xC3\xA9") + bad + "z"), 2u);
  }
}

}  // namespace
}  // namespace xce

// The table of settings: limits at their bounds, every value's text read back, every row complete.
#include "src/core/config_schema.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

namespace xce {
namespace {

TEST(ConfigSchemaTest, LimitsAtTheirBounds) {
  Limits open{0, 1, true, true}, closed{0, 1, false, false}, any;
  EXPECT_FALSE(open.contain(0));
  EXPECT_FALSE(open.contain(1));
  EXPECT_TRUE(open.contain(0.5));
  EXPECT_TRUE(closed.contain(0));
  EXPECT_TRUE(closed.contain(1));
  EXPECT_FALSE(closed.contain(-0.1));
  EXPECT_FALSE(closed.contain(1.1));
  EXPECT_TRUE(any.contain(-1e300));
  for (const Limits& limits : {open, closed, any}) {
    EXPECT_FALSE(limits.contain(std::nan("")));
    EXPECT_FALSE(limits.contain(INFINITY));
    EXPECT_FALSE(limits.contain(-INFINITY));
  }
  EXPECT_EQ(open.text(), " > 0 and < 1");
  EXPECT_EQ(closed.text(), " >= 0 and <= 1");
  EXPECT_EQ(any.text(), "");
}

TEST(ConfigSchemaTest, RowsAreUniqueAndExplained) {
  Config config;
  std::set<std::string> paths;
  for (const ConfigKey& key : config_keys(config)) {
    EXPECT_TRUE(paths.insert(key.path).second) << key.path;
    EXPECT_FALSE(key.help.empty()) << key.path;
    EXPECT_EQ(key.section() + "." + key.name(), key.path);
    EXPECT_FALSE(type_text(key).empty());
  }
  EXPECT_TRUE(paths.contains("model.rope_scaling.rope_type"));
}

// Sets every field of one config to something other than its default, by text, and finds it in the config by text
// again.
TEST(ConfigSchemaTest, EveryFieldTakesItsTextAndNoOther) {
  Config config;
  for (const ConfigKey& key : config_keys(config)) {
    Config one_changed;
    std::vector<ConfigKey> keys = config_keys(one_changed), defaults_keys;
    Config defaults;
    defaults_keys = config_keys(defaults);
    int changed = 0;
    for (size_t i = 0; i < keys.size(); ++i) {
      if (keys[i].path != key.path) continue;
      std::string value = value_text(keys[i]);
      if (std::holds_alternative<std::string*>(key.field)) value = "other";
      if (std::holds_alternative<bool*>(key.field)) value = std::string(value == "true" ? "false" : "true");
      if (std::holds_alternative<int64_t*>(key.field)) value = std::string(value == "7" ? "8" : "7");
      if (std::holds_alternative<double*>(key.field)) value = std::string(key.limits.contain(0.25) ? "0.25" : "7");
      if (const auto* choice = std::get_if<ChoiceField>(&key.field)) value = choice->names.back();
      if (value == value_text(keys[i])) value = std::get<ChoiceField>(key.field).names.front();
      EXPECT_EQ(assign(keys[i], value), std::nullopt) << key.path;
      EXPECT_EQ(value_text(keys[i]), value);
    }
    for (size_t i = 0; i < keys.size(); ++i) changed += value_text(keys[i]) != value_text(defaults_keys[i]);
    EXPECT_EQ(changed, 1) << key.path;  // no two rows share a field
  }
}

TEST(ConfigSchemaTest, RefusedTextChangesNothing) {
  Config config;
  for (const ConfigKey& key : config_keys(config)) {
    std::string before = value_text(key);
    EXPECT_NE(assign(key, "\n"), std::nullopt) << key.path;
    EXPECT_EQ(value_text(key), before);
  }
}

}  // namespace
}  // namespace xce

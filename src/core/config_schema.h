// The table of settings: path, place in a Config, type, limits, meaning; and the text form of a value. Adding a setting
// is a field in config.h and a row here.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "src/core/config.h"

namespace xce {

struct Limits {
  double low = -std::numeric_limits<double>::infinity(), high = std::numeric_limits<double>::infinity();
  bool low_open = false, high_open = false;  // the bound itself is outside
  bool contain(double value) const;          // false for NaN and infinity
  std::string text() const;                  // " > 0", " >= 0 and < 1", ""
};

// One of a set of names; the index is the enumerator's value.
struct ChoiceField {
  std::vector<std::string> names;
  std::function<int()> get;
  std::function<void(int)> set;
};
using ConfigField = std::variant<int64_t*, double*, bool*, std::string*, ChoiceField>;

struct ConfigKey {
  std::string path;
  ConfigField field;  // points into the Config that config_keys was given
  Limits limits;      // numbers
  bool required;      // 0 or empty means missing
  std::string help;

  std::string section() const { return path.substr(0, path.rfind('.')); }
  std::string name() const { return path.substr(path.rfind('.') + 1); }
};

std::vector<ConfigKey> config_keys(Config& config);

// Sets the value from text; returns what is wrong with the text, e.g. "expected a number > 0, got '0.1x'", or nothing.
std::optional<std::string> assign(const ConfigKey& key, const std::string& text);

std::string value_text(const ConfigKey& key);  // assign(value_text) gives the same value
std::string value_yaml(const ConfigKey& key);  // the same, quoted where YAML needs it
std::string type_text(const ConfigKey& key);   // "integer >= 1", "bytes | tokens"

}  // namespace xce

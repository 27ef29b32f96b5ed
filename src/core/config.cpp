// From a YAML tree and command line words to a Config by way of the table of keys, and back to YAML.
#include "src/core/config.h"

#include <algorithm>

#include "src/core/config_schema.h"
#include "src/core/config_yaml.h"
#include "src/core/file.h"
#include "src/core/suggest.h"

namespace xce {
namespace {

constexpr uint64_t kMaxFileBytes = uint64_t{1} << 20;

std::string key_list(const std::vector<std::string>& names) {
  std::string result;
  for (const std::string& name : names) result += (result.empty() ? "" : ", ") + name;
  return result;
}

class ConfigReader {
 public:
  ConfigReader(Config& config, const std::string& file) : config_(config), file_(file), keys_(config_keys(config)) {}

  // Reads the entries of a map; prefix is "" at the top and "model." inside a section.
  void read_map(const YamlNode& map, const std::string& prefix) {
    for (const YamlEntry& entry : map.entries) {
      std::string path = prefix + entry.key;
      if (const ConfigKey* key = find(path)) {
        read_value(*key, entry);
      } else if (is_section(path)) {
        read_section(entry, path);
      } else {
        fail(entry.line, entry.column, unknown(path));
      }
    }
  }

  void override_with(const std::string& word) {
    size_t equals = word.find('=');
    std::string where = str("command line '", word, "': ");
    if (equals == std::string::npos || equals == 0)
      throw Error(ErrorCode::kUsage, where + "expected section.key=value");
    std::string path = word.substr(0, equals);
    const ConfigKey* key = find(path);
    if (key == nullptr) {
      throw Error(ErrorCode::kUsage,
                  where + (is_section(path) ? str("'", path, "' is a section; write ", path, ".key=value")
                                            : unknown(path, true)));
    }
    if (auto wrong = assign(*key, word.substr(equals + 1)))
      throw Error(ErrorCode::kUsage, str(where, path, ": ", *wrong));
    config_.origins[path] = {ConfigOrigin::Kind::kCommandLine, word, 0, 0};
  }

 private:
  [[noreturn]] void fail(int line, int column, const std::string& message) const {
    throw Error(ErrorCode::kUsage, str(file_, ":", line, ":", column, ": ", message));
  }

  const ConfigKey* find(const std::string& path) const {
    auto key = std::find_if(keys_.begin(), keys_.end(), [&](const ConfigKey& k) { return k.path == path; });
    return key == keys_.end() ? nullptr : &*key;
  }

  bool is_section(const std::string& path) const {
    return std::any_of(keys_.begin(), keys_.end(), [&](const ConfigKey& k) { return k.path.starts_with(path + "."); });
  }

  void read_section(const YamlEntry& entry, const std::string& path) {
    const YamlNode& value = entry.value;
    if (value.kind == YamlNode::Kind::kMap) return read_map(value, path + ".");
    if (value.kind == YamlNode::Kind::kNull) {
      fail(entry.line, entry.column, str("section '", path, "' is empty; give it keys or leave it out"));
    }
    std::string got = value.kind == YamlNode::Kind::kList ? "a list" : str("'", value.text, "'");
    fail(value.line, value.column, str(path, ": expected a section with keys below it, got ", got));
  }

  void read_value(const ConfigKey& key, const YamlEntry& entry) {
    const YamlNode& value = entry.value;
    if (value.kind == YamlNode::Kind::kNull) {
      fail(entry.line, entry.column, str(key.path, ": no value; give one (", type_text(key), ") or leave the key out"));
    }
    if (value.kind != YamlNode::Kind::kScalar) {
      const char* got = value.kind == YamlNode::Kind::kList ? "a list" : "a section";
      fail(value.line, value.column, str(key.path, ": expected one value (", type_text(key), "), got ", got));
    }
    if (auto wrong = assign(key, value.text)) fail(value.line, value.column, str(key.path, ": ", *wrong));
    config_.origins[key.path] = {ConfigOrigin::Kind::kFile, file_, value.line, value.column};
  }

  // Names that may stand directly below prefix: keys and sections.
  std::vector<std::string> names_below(const std::string& prefix) const {
    std::vector<std::string> names;
    for (const ConfigKey& key : keys_) {
      if (!key.path.starts_with(prefix)) continue;
      std::string rest = key.path.substr(prefix.size());
      std::string name = rest.substr(0, rest.find('.'));
      if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
    }
    return names;
  }

  // First a likeness in the same section, then the same name elsewhere, then a likeness elsewhere. A file's key stands
  // below its section and is suggested without it, unless full_key: a word of the command line.
  std::string unknown(const std::string& path, bool full_key = false) const {
    size_t dot = path.rfind('.');
    std::string prefix = dot == std::string::npos ? "" : path.substr(0, dot + 1);
    std::string name = path.substr(prefix.size());
    std::string message = str("unknown ", prefix.empty() ? "section" : "key", " '", path, "'");
    std::vector<std::string> siblings = names_below(prefix);
    std::string nearest = nearest_name(name, siblings);
    if (!nearest.empty() && full_key) nearest = prefix + nearest;
    if (nearest.empty()) {
      std::vector<std::string> names;
      for (const ConfigKey& key : keys_) names.push_back(key.name());
      auto match = std::find(names.begin(), names.end(), nearest_name(name, names));
      if (match != names.end()) nearest = keys_[static_cast<size_t>(match - names.begin())].path;
    }
    if (nearest.empty() && siblings.empty()) nearest = nearest_name(path.substr(0, path.find('.')), names_below(""));
    if (!nearest.empty()) return str(message, "; did you mean '", nearest, "'?");
    return str(message, "; known here: ", key_list(siblings.empty() ? names_below("") : siblings));
  }

  Config& config_;
  const std::string& file_;
  std::vector<ConfigKey> keys_;
};

std::string origin_note(const Config& config, const std::string& path) {
  auto found = config.origins.find(path);
  if (found == config.origins.end()) return "default";
  switch (found->second.kind) {
    case ConfigOrigin::Kind::kFile:
      return str(found->second.file, ":", found->second.line);
    case ConfigOrigin::Kind::kCommandLine:
      return "command line";
    case ConfigOrigin::Kind::kDerived:
      return "derived";
  }
  return "?";
}

bool is_fixed_on_resume(const ConfigKey& key) {
  bool whole_section = key.path.starts_with("model.") || key.path.starts_with("data.");
  return whole_section || key.path == "run.seed" || key.path == "train.seq_len" || key.path == "train.global_batch" ||
         key.path == "train.precision";
}

// "a.b.c" opens the sections that the previous key's section does not share.
void open_sections(const std::string& previous, const std::string& section, std::string& yaml) {
  size_t begin = 0, depth = 0;
  while (begin <= section.size()) {
    size_t end = std::min(section.find('.', begin), section.size());
    std::string head = section.substr(0, end);
    if (previous != head && !previous.starts_with(head + ".")) {
      if (depth == 0 && !yaml.empty()) yaml += '\n';
      yaml += std::string(2 * depth, ' ') + section.substr(begin, end - begin) + ":\n";
    }
    begin = end + 1;
    ++depth;
  }
}

}  // namespace

std::string ConfigOrigin::where() const {
  switch (kind) {
    case Kind::kFile:
      return str(file, ":", line, ":", column);
    case Kind::kCommandLine:
      return str("command line '", file, "'");
    case Kind::kDerived:
      return "derived";
  }
  return "?";
}

bool Config::was_given(const std::string& key) const {
  auto found = origins.find(key);
  return found != origins.end() && found->second.kind != ConfigOrigin::Kind::kDerived;
}

Config parse_config(const std::string& text, const std::string& file_name, const std::vector<std::string>& overrides) {
  Config config;
  config.file = file_name;
  ConfigReader reader(config, file_name);
  reader.read_map(parse_yaml_map(text, file_name), "");
  for (const std::string& word : overrides) reader.override_with(word);
  finish_config(config);
  return config;
}

Config load_config(const std::string& path, const std::vector<std::string>& overrides) {
  return parse_config(read_text_file(path, kMaxFileBytes), path, overrides);
}

std::string config_to_yaml(const Config& config, bool with_origins) {
  Config copy = config;
  std::string yaml, section;
  for (const ConfigKey& key : config_keys(copy)) {
    if (key.section() != section) open_sections(section, key.section(), yaml);
    section = key.section();
    auto depth = static_cast<size_t>(std::count(key.path.begin(), key.path.end(), '.'));
    std::string line = std::string(2 * depth, ' ') + key.name() + ": " + value_yaml(key);
    if (with_origins) {
      line += std::string(line.size() < 44 ? 44 - line.size() : 1, ' ') + "# " + origin_note(config, key.path);
    }
    yaml += line + '\n';
  }
  return yaml;
}

ConfigChanges changed_keys(const Config& before, const Config& after) {
  Config old_copy = before, new_copy = after;
  std::vector<ConfigKey> old_keys = config_keys(old_copy), new_keys = config_keys(new_copy);
  ConfigChanges changes;
  for (size_t i = 0; i < old_keys.size(); ++i) {
    std::string was = value_yaml(old_keys[i]), is = value_yaml(new_keys[i]);
    const std::string& path = old_keys[i].path;
    if (was == is || path == "run.dir" || path == "run.resume") continue;
    (is_fixed_on_resume(old_keys[i]) ? changes.fatal : changes.listed).push_back(str(path, ": ", was, " -> ", is));
  }
  return changes;
}

std::vector<ConfigKeyHelp> config_help() {
  Config defaults;
  std::vector<ConfigKeyHelp> rows;
  for (const ConfigKey& key : config_keys(defaults)) {
    std::string value = value_text(key);
    rows.push_back({key.path, type_text(key), key.required ? "required" : value.empty() ? "empty" : value, key.help});
  }
  return rows;
}

}  // namespace xce

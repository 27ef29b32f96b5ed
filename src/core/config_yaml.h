// YAML text as a tree that remembers where each key and value stands. Stricter than YAML where YAML surprises:
// duplicate keys, anchors, tags, several documents and text that is not UTF-8 are errors; every scalar stays text.
#pragma once

#include <string>
#include <vector>

namespace xce {

struct YamlEntry;

struct YamlNode {
  enum class Kind { kNull, kScalar, kList, kMap } kind = Kind::kNull;
  std::string text;                // kScalar
  std::vector<YamlEntry> entries;  // kMap, in the file's order
  int line = 0, column = 0;        // from 1; the column counts bytes
};

struct YamlEntry {
  std::string key;
  int line = 0, column = 0;  // of the key
  YamlNode value;
};

// The file's one document, which must be a map; an empty file is an empty map. Throws Error(kUsage, "file:line:column:
// ...").
YamlNode parse_yaml_map(std::string text, const std::string& file_name);

// The offset of the first byte that is not part of well-formed UTF-8, or npos.
size_t find_invalid_utf8(const std::string& text);

}  // namespace xce

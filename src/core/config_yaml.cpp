// Built on yaml-cpp's events instead of its nodes: nodes lose duplicate keys and the place of keys.
#include "src/core/config_yaml.h"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/parser.h>

#include <algorithm>
#include <memory>
#include <sstream>
#include <utility>

#include "kernels/base/check.h"

namespace xce {
namespace {

class TreeBuilder : public YAML::EventHandler {
 public:
  TreeBuilder(const std::string& text, const std::string& file_name) : source_(text), file_(file_name) {}

  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    add(mark, "", anchor, node(YamlNode::Kind::kNull, mark));
  }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override { fail(mark, "aliases ('*name') are not supported"); }
  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& text) override {
    if (tag == "!") check_closed(mark);
    YamlNode scalar = node(YamlNode::Kind::kScalar, mark);
    scalar.text = text;
    add(mark, tag, anchor, std::move(scalar));
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    open(mark, tag, anchor, YamlNode::Kind::kList);
  }
  void OnSequenceEnd() override { close(); }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    open(mark, tag, anchor, YamlNode::Kind::kMap);
  }
  void OnMapEnd() override { close(); }

  YamlNode take_root() { return std::move(root_); }

 private:
  // A collection being read. In a map keys and values alternate: a key has been read when has_key.
  struct Level {
    YamlNode node;
    YamlEntry entry;
    bool has_key = false;
  };

  static YamlNode node(YamlNode::Kind kind, const YAML::Mark& mark) {
    YamlNode result;
    result.kind = kind;
    result.line = mark.line + 1;
    result.column = mark.column + 1;
    return result;
  }

  [[noreturn]] void fail(const YAML::Mark& mark, const std::string& message) const {
    throw Error(ErrorCode::kUsage, str(file_, ":", mark.line + 1, ":", mark.column + 1, ": ", message));
  }

  void check_plain(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor) const {
    if (anchor != YAML::NullAnchor) fail(mark, "anchors ('&name') are not supported");
    if (!tag.empty() && tag != "?" && tag != "!") fail(mark, str("tags ('", tag, "') are not supported"));
  }

  // yaml-cpp takes the end of the file for the missing quote.
  void check_closed(const YAML::Mark& mark) const {
    auto at = static_cast<size_t>(mark.pos);
    char quote = at < source_.size() ? source_[at] : '\0';
    if (quote != '\'' && quote != '"') return;  // a block scalar
    for (++at; at < source_.size() && source_[at] != quote; ++at) {
      if (quote == '"' && source_[at] == '\\') ++at;
    }
    if (at >= source_.size()) fail(mark, str("the closing ", quote, " is missing"));
  }

  bool expects_key() const {
    return !levels_.empty() && levels_.back().node.kind == YamlNode::Kind::kMap && !levels_.back().has_key;
  }

  void open(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor, YamlNode::Kind kind) {
    check_plain(mark, tag, anchor);
    if (expects_key()) fail(mark, "a key must be a plain name");
    levels_.push_back({node(kind, mark), {}, false});
  }

  void close() {
    YamlNode done = std::move(levels_.back().node);
    levels_.pop_back();
    place(std::move(done));
  }

  void add(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor, YamlNode scalar) {
    check_plain(mark, tag, anchor);
    if (!expects_key()) return place(std::move(scalar));
    if (scalar.kind != YamlNode::Kind::kScalar) fail(mark, "a key is missing before ':'");
    Level& level = levels_.back();
    for (const YamlEntry& earlier : level.node.entries) {
      if (earlier.key == scalar.text) {
        fail(mark, str("duplicate key '", scalar.text, "', first given in line ", earlier.line));
      }
    }
    level.entry = {scalar.text, scalar.line, scalar.column, {}};
    level.has_key = true;
  }

  // A list's elements are dropped: no setting is a list, its place and kind are enough for the error.
  void place(YamlNode value) {
    if (levels_.empty()) {
      root_ = std::move(value);
      return;
    }
    Level& level = levels_.back();
    if (level.node.kind != YamlNode::Kind::kMap) return;
    level.entry.value = std::move(value);
    level.node.entries.push_back(std::move(level.entry));
    level.has_key = false;
  }

  const std::string& source_;
  const std::string& file_;
  std::vector<Level> levels_;
  YamlNode root_;
};

// Without a byte order mark and with '\n' as the only line end, so that columns and strings do not depend on the
// editor.
void normalise(std::string& text) {
  if (text.compare(0, 3, "\xEF\xBB\xBF") == 0) text.erase(0, 3);
  size_t kept = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\r') {
      if (i + 1 < text.size() && text[i + 1] == '\n') continue;
      text[i] = '\n';
    }
    text[kept++] = text[i];
  }
  text.resize(kept);
}

[[noreturn]] void fail_at(const std::string& file, const std::string& text, size_t offset, const std::string& message) {
  auto line = 1 + std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(offset), '\n');
  size_t line_start = offset == 0 ? std::string::npos : text.rfind('\n', offset - 1);
  size_t column = line_start == std::string::npos ? offset + 1 : offset - line_start;
  throw Error(ErrorCode::kUsage, str(file, ":", line, ":", column, ": ", message));
}

}  // namespace

size_t find_invalid_utf8(const std::string& text) {
  auto byte = [&](size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u; };
  for (size_t i = 0; i < text.size();) {
    unsigned lead = byte(i);
    size_t length = lead < 0x80                   ? 1
                    : lead >= 0xC2 && lead < 0xE0 ? 2
                    : (lead >> 4) == 0xE          ? 3
                    : lead >= 0xF0 && lead < 0xF5 ? 4
                                                  : 0;
    if (length == 0) return i;
    for (size_t k = 1; k < length; ++k) {
      if ((byte(i + k) & 0xC0) != 0x80) return i;
    }
    unsigned second = byte(i + 1);
    bool overlong = (lead == 0xE0 && second < 0xA0) || (lead == 0xF0 && second < 0x90);
    bool outside = (lead == 0xED && second >= 0xA0) || (lead == 0xF4 && second >= 0x90);  // surrogates, above U+10FFFF
    if (overlong || outside) return i;
    i += length;
  }
  return std::string::npos;
}

YamlNode parse_yaml_map(std::string text, const std::string& file_name) {
  normalise(text);
  if (size_t at = find_invalid_utf8(text); at != std::string::npos) fail_at(file_name, text, at, "not UTF-8 text");
  if (size_t at = text.find('\0'); at != std::string::npos)
    fail_at(file_name, text, at, "a zero byte: not a text file");
  TreeBuilder builder(text, file_name);
  try {
    std::istringstream stream(text);
    YAML::Parser parser(stream);
    if (!parser.HandleNextDocument(builder)) {
      YamlNode empty;
      empty.kind = YamlNode::Kind::kMap;
      empty.line = empty.column = 1;
      return empty;
    }
    TreeBuilder rest(text, file_name);
    if (parser.HandleNextDocument(rest)) {
      YamlNode second = rest.take_root();
      throw Error(ErrorCode::kUsage, str(file_name, ":", second.line, ":", second.column,
                                         ": expected one YAML document, here begins another"));
    }
  } catch (const YAML::Exception& error) {
    if (error.mark.is_null()) throw Error(ErrorCode::kUsage, str(file_name, ": YAML: ", error.msg));
    throw Error(ErrorCode::kUsage,
                str(file_name, ":", error.mark.line + 1, ":", error.mark.column + 1, ": YAML: ", error.msg));
  }
  YamlNode root = builder.take_root();
  if (root.kind == YamlNode::Kind::kNull) root.kind = YamlNode::Kind::kMap;  // "---" and nothing below
  if (root.kind == YamlNode::Kind::kMap) return root;
  throw Error(ErrorCode::kUsage,
              str(file_name, ":", root.line, ":", root.column, ": expected sections such as 'model:' or 'train:', got ",
                  root.kind == YamlNode::Kind::kList ? "a list" : "a single value"));
}

}  // namespace xce

#include "src/io/json.h"

#include <set>
#include <vector>

#include "kernels/base/check.h"

namespace xce {

nlohmann::json parse_json(const std::string& text, const std::string& what) {
  using Json = nlohmann::json;
  constexpr int kMaxDepth = 64;
  auto fail = [&](const std::string& reason) { throw Error(ErrorCode::kCorrupt, str(what, ": ", reason)); };
  std::vector<std::set<std::string>> keys;  // of the objects that are open
  auto watch = [&](int depth, Json::parse_event_t event, Json& value) {
    if (depth > kMaxDepth) fail("nested too deeply");
    if (event == Json::parse_event_t::object_start) keys.emplace_back();
    if (event == Json::parse_event_t::object_end) keys.pop_back();
    if (event == Json::parse_event_t::key && !keys.back().insert(value.get<std::string>()).second)
      fail(str("the key ", value.dump(), " occurs twice"));
    return true;
  };
  Json result;
  try {
    result = Json::parse(text, watch);
  } catch (const Json::exception& error) {
    fail(str("not JSON: ", error.what()));
  }
  if (!result.is_object()) fail("not a JSON object");
  return result;
}

}  // namespace xce

// JSON that comes from outside: one parser for every format, which refuses doubled keys and runaway nesting.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace xce {

// Error(kCorrupt, "<what>: reason") for anything but one well-formed JSON object.
nlohmann::json parse_json(const std::string& text, const std::string& what);

}  // namespace xce

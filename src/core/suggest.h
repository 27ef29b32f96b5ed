// The nearest known name to a mistyped one.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace xce {

// Edits between two names: insert, delete, replace, or swap two neighbours; upper case equals lower case, '-' equals
// '_'.
int edit_distance(std::string_view a, std::string_view b);

// The candidate with the fewest edits, if they are at most a third of the name's length (at least one edit is allowed,
// two from four letters on); otherwise "". The first of equals wins.
std::string nearest_name(std::string_view name, const std::vector<std::string>& candidates);

}  // namespace xce

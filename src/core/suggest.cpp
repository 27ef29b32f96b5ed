// Optimal string alignment distance over three rolling rows.
#include "src/core/suggest.h"

#include <algorithm>
#include <cctype>
#include <numeric>

namespace xce {
namespace {

char folded(char c) {
  return c == '-' ? '_' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
}

}  // namespace

int edit_distance(std::string_view a, std::string_view b) {
  std::vector<int> before_last(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  std::iota(last.begin(), last.end(), 0);
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = static_cast<int>(i);
    for (size_t j = 1; j <= b.size(); ++j) {
      char x = folded(a[i - 1]), y = folded(b[j - 1]);
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (x != y)});
      bool swapped = i > 1 && j > 1 && x == folded(b[j - 2]) && folded(a[i - 2]) == y;
      if (swapped) row[j] = std::min(row[j], before_last[j - 2] + 1);
    }
    before_last.swap(last);
    last.swap(row);
  }
  return last[b.size()];
}

std::string nearest_name(std::string_view name, const std::vector<std::string>& candidates) {
  int limit = std::max(name.size() < 4 ? 1 : 2, static_cast<int>(name.size() / 3));
  std::string best;
  for (const std::string& candidate : candidates) {
    int distance = edit_distance(name, candidate);
    // A name replaced letter by letter is no likeness.
    if (distance > limit || distance >= static_cast<int>(candidate.size())) continue;
    limit = distance - 1;
    best = candidate;
  }
  return best;
}

}  // namespace xce

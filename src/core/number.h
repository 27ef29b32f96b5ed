// Numbers as text, independent of the locale: strict parsing (the whole text or nothing) and the shortest text that
// reads back to the same bits. Settings and metrics share it.
#pragma once

#include <charconv>
#include <cstdint>
#include <string>
#include <string_view>

namespace xce {

// What became of a text that should be a number.
enum class NumberText { kOk, kMalformed, kOverflow };

template <class T>
NumberText parse_number(std::string_view text, T* value) {
  if (text.size() > 1 && text[0] == '+' && text[1] != '-') text.remove_prefix(1);
  const char* end = text.data() + text.size();
  auto [stop, error] = std::from_chars(text.data(), end, *value);
  if (error == std::errc::invalid_argument || stop != end) return NumberText::kMalformed;
  return error == std::errc() ? NumberText::kOk : NumberText::kOverflow;
}

// 0.0001 -> "1e-4", 1.0 -> "1"; not finite: "nan", "inf", "-inf".
inline std::string format_double(double value) {
  char buffer[32];
  std::string text(buffer, std::to_chars(buffer, buffer + sizeof buffer, value).ptr);
  size_t e = text.find('e');
  if (e == std::string::npos) return text;
  size_t digits = text[e + 1] == '-' || text[e + 1] == '+' ? e + 2 : e + 1;
  while (digits + 1 < text.size() && text[digits] == '0') text.erase(digits, 1);
  if (text[e + 1] == '+') text.erase(e + 1, 1);
  return text;
}

}  // namespace xce

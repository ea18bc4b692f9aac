#pragma once
#include <fmt/format.h>
#include <time.h>

#include <charconv>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace recurve {

// The text of the first element of that name, which has no elements in it; empty: there is none.
// Answers of S3 and STS are read this way. Characters that XML writes as entities remain so.
inline std::string_view xml_element(std::string_view xml, std::string_view name) {
  const std::string open = fmt::format("<{}>", name), close = fmt::format("</{}>", name);
  const size_t begin = xml.find(open);
  if (begin == std::string_view::npos) return {};
  const size_t end = xml.find(close, begin);
  if (end == std::string_view::npos) return {};
  return xml.substr(begin + open.size(), end - begin - open.size());
}

// Without entities that are ASCII characters.
inline std::string xml_unescaped(std::string_view text) {
  constexpr std::pair<std::string_view, char> kNamed[] = {
      {"amp", '&'}, {"lt", '<'}, {"gt", '>'}, {"quot", '"'}, {"apos", '\''}};
  std::string plain;
  while (!text.empty()) {
    const size_t end = text.front() == '&' ? text.find(';') : std::string_view::npos;
    std::string_view name = end < text.size() ? text.substr(1, end - 1) : std::string_view();
    std::optional<char> found;
    for (const auto& [entity, character] : kNamed) {
      if (name == entity) found = character;
    }
    if (name.starts_with('#')) {
      name.remove_prefix(1);
      const bool hex = name.starts_with('x');
      if (hex) name.remove_prefix(1);
      unsigned code = 0;
      const auto read =
          std::from_chars(name.data(), name.data() + name.size(), code, hex ? 16 : 10);
      if (read.ec == std::errc() && read.ptr == name.data() + name.size() && code < 128) {
        found = static_cast<char>(code);
      }
    }
    plain += found.value_or(text.front());
    text.remove_prefix(found ? end + 1 : 1);
  }
  return plain;
}

// "2026-01-31T10:20:30Z", with or without a fraction, in seconds since 1970; nothing: it is no
// time.
inline std::optional<time_t> xml_time(std::string_view text) {
  struct tm parts{};
  const char* const end = strptime(std::string(text).c_str(), "%Y-%m-%dT%H:%M:%S", &parts);
  return end != nullptr ? std::optional(timegm(&parts)) : std::nullopt;
}

}  // namespace recurve

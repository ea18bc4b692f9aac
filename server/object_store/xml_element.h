#pragma once
#include <fmt/format.h>
#include <time.h>

#include <optional>
#include <string>
#include <string_view>

namespace recurve {

// The text of the first element of that name, which has no elements in it; empty: there is none.
// Answers of S3 and STS are read this way: none of the texts that are used has a character that XML
// writes as an entity but in a message.
inline std::string_view xml_element(std::string_view xml, std::string_view name) {
  const std::string open = fmt::format("<{}>", name), close = fmt::format("</{}>", name);
  const size_t begin = xml.find(open);
  if (begin == std::string_view::npos) return {};
  const size_t end = xml.find(close, begin);
  if (end == std::string_view::npos) return {};
  return xml.substr(begin + open.size(), end - begin - open.size());
}

// "2026-01-31T10:20:30Z", with or without a fraction, in seconds since 1970; nothing: it is no
// time.
inline std::optional<time_t> xml_time(std::string_view text) {
  struct tm parts{};
  const char* const end = strptime(std::string(text).c_str(), "%Y-%m-%dT%H:%M:%S", &parts);
  return end != nullptr ? std::optional(timegm(&parts)) : std::nullopt;
}

}  // namespace recurve

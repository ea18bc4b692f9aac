#pragma once
#include <fmt/format.h>

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

}  // namespace recurve

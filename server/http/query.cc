#include "server/http/query.h"

#include <algorithm>
#include <charconv>

namespace recurve {
namespace {

// What is no escape stays as it is.
std::string decoded(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    unsigned char byte = 0;
    const char* digits = text.data() + i + 1;
    const bool escape = text[i] == '%' && i + 2 < text.size() &&
                        std::from_chars(digits, digits + 2, byte, 16).ptr == digits + 2;
    out.push_back(escape ? static_cast<char>(byte) : text[i] == '+' ? ' ' : text[i]);
    if (escape) i += 2;
  }
  return out;
}

}  // namespace

std::optional<std::string> query_field(std::string_view query, std::string_view name) {
  while (!query.empty()) {
    const std::string_view field = query.substr(0, query.find('&'));
    query.remove_prefix(std::min(field.size() + 1, query.size()));
    const size_t equals = field.find('=');
    if (field.substr(0, equals) != name) continue;
    return equals == std::string_view::npos ? "" : decoded(field.substr(equals + 1));
  }
  return {};
}

}  // namespace recurve

#pragma once
#include <charconv>
#include <optional>
#include <string>
#include <string_view>

#include "server/http/body_fields.h"
#include "server/http/message.h"

namespace recurve {

// A number of a target's query; nothing if there is none. Throws BadField for another text.
template <typename Number>
std::optional<Number> query_number(std::string_view query, const char* field) {
  const auto text = query_field(query, field);
  if (!text) return {};
  Number value = 0;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), value);
  if (error == std::errc() && end == text->data() + text->size()) return value;
  throw BadField(field, fmt::format("{} must be a number, got \"{}\"", field, cut(*text)));
}

// The most objects of a page of a list, from `limit`. Throws BadField.
inline int page_size(std::string_view query, int by_default, int most) {
  const int size = query_number<int>(query, "limit").value_or(by_default);
  if (size >= 1 && size <= most) return size;
  throw BadField("limit", fmt::format("limit must be in [1, {}], got {}", most, size));
}

}  // namespace recurve

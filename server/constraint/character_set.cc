#include "server/constraint/character_set.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

namespace recurve {
namespace {

// With \u and four digits or \U and eight, since the library reads every digit after \x.
std::string escaped_in_class(uint32_t character) {
  if (character > 0xffff) return fmt::format("\\U{:08x}", character);
  if (character < 0x20 || character > 0x7e) return fmt::format("\\u{:04x}", character);
  const char c = static_cast<char>(character);
  const bool is_special = std::string_view("\\[]^-").find(c) != std::string_view::npos;
  return is_special ? std::string("\\") + c : std::string(1, c);
}

// Those with a short escape in JSON, and the letters of these.
constexpr std::string_view kEscapedInJson = "\"\\\b\f\n\r\t", kJsonEscapes = "\"\\bfnrt";

// Those of `from` in the set, as the ones of `to` at the same index.
CharacterSet mapped(const CharacterSet& set, std::string_view from, std::string_view to) {
  CharacterSet result;
  for (size_t i = 0; i < from.size(); ++i) {
    const CharacterSet one(static_cast<uint32_t>(from[i]), static_cast<uint32_t>(from[i]));
    if (!set.within(one).empty()) {
      result.add(static_cast<uint32_t>(to[i]), static_cast<uint32_t>(to[i]));
    }
  }
  return result;
}

}  // namespace

void CharacterSet::add(const CharacterSet& other) {
  ranges_.insert(ranges_.end(), other.ranges_.begin(), other.ranges_.end());
}

CharacterSet::Ranges CharacterSet::sorted() const {
  Ranges all = ranges_, joined;
  std::ranges::sort(all);
  for (const auto& [first, last] : all) {
    if (!joined.empty() && first <= joined.back().second + 1) {
      joined.back().second = std::max(joined.back().second, last);
    } else {
      joined.emplace_back(first, last);
    }
  }
  return joined;
}

CharacterSet CharacterSet::complement() const {
  CharacterSet others;
  uint32_t next = 0;
  for (const auto& [first, last] : sorted()) {
    if (first > next) others.add(next, first - 1);
    next = last + 1;
  }
  if (next <= kLast) others.add(next, kLast);
  return others;
}

CharacterSet CharacterSet::within(const CharacterSet& other) const {
  CharacterSet outside = complement();
  outside.add(other.complement());
  return outside.complement();
}

std::string CharacterSet::to_class() const {
  Ranges ranges = sorted();
  std::string text = "[";
  if (ranges.back().second == kLast && ranges.front() != std::pair(uint32_t{0}, kLast)) {
    text += '^';
    ranges = complement().ranges_;
  }
  for (const auto& [first, last] : ranges) {
    text += escaped_in_class(first);
    if (last > first + 1) text += '-';
    if (last > first) text += escaped_in_class(last);
  }
  return text + "]";
}

CharacterSet plain_in_json() {
  CharacterSet others(0, 0x1f);
  others.add('"', '"');
  others.add('\\', '\\');
  return others.complement();
}

CharacterSet json_escapes_of(const CharacterSet& set) {
  return mapped(set, kEscapedInJson, kJsonEscapes);
}

CharacterSet characters_of_json_escapes(const CharacterSet& letters) {
  return mapped(letters, kJsonEscapes, kEscapedInJson);
}

CharacterSet json_characters() {
  CharacterSet all = plain_in_json();
  for (const char c : kEscapedInJson) all.add(static_cast<uint32_t>(c), static_cast<uint32_t>(c));
  return all;
}

CharacterSet characters_of_escape(char name) {
  if (name < 'a') return characters_of_escape(static_cast<char>(name - 'A' + 'a')).complement();
  CharacterSet set;
  if (name != 's') set.add('0', '9');
  if (name == 'w') {
    set.add('A', 'Z');
    set.add('_', '_');
    set.add('a', 'z');
  }
  if (name == 's') {
    set.add('\t', '\r');
    set.add(' ', ' ');
    for (const uint32_t space : {0xa0u, 0x1680u, 0x202fu, 0x205fu, 0x3000u, 0xfeffu}) {
      set.add(space, space);
    }
    set.add(0x2000, 0x200a);
    set.add(0x2028, 0x2029);
  }
  return set;
}

}  // namespace recurve

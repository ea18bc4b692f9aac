#pragma once
#include <algorithm>
#include <string>
#include <string_view>

namespace recurve {

// At most 200 characters of a text of others, for a message: all but printable ASCII is "?".
inline std::string printable(std::string_view text) {
  std::string plain(text.substr(0, 200));
  std::ranges::replace_if(plain, [](char c) { return c < ' ' || c > '~'; }, '?');
  return plain;
}

}  // namespace recurve

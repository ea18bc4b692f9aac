#pragma once
#include <cstddef>
#include <string>
#include <string_view>

#include "server/text/utf8.h"

namespace recurve {

// Of what a client has sent, as much as a sentence quotes. A frontend cuts the sentence as a whole,
// too: gRPC sends it in a header, which clients bound.
inline constexpr size_t kMostQuoted = 64, kMostSaid = 1024;

// The first bytes of a text, whole characters, and "..." where there is more.
inline std::string cut(std::string_view text, size_t most = kMostQuoted) {
  if (text.size() <= most) return std::string(text);
  return std::string(text.substr(0, whole_characters(text, most))) + "...";
}

}  // namespace recurve

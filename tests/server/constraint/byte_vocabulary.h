#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "server/constraint/constraint_library.h"

namespace recurve::testing {

// A vocabulary for tests: id 0 is a control token, then come all bytes, and then some tokens of
// several bytes, those with parts of characters and of JSON's own marks among them.
inline TokenTexts byte_vocabulary() {
  TokenTexts texts = {""};
  for (int byte = 0; byte < 256; ++byte) texts.emplace_back(1, static_cast<char>(byte));
  for (const std::string_view token :
       {"{\"",      "\":",          "\",",      "\"}",  "},",   "]}",  "\", \"",
        "true",     "false",        "null",     " the", "ing",  "12",  "3.5",
        "\xc3\xa9", "\xc3\xa9\xe2", "\x82\xac", "\n\n", "    ", "e+1", "\\u00",
        "\\n",      "name",         "\"name\"", "20",   "24-",  "://", "a\"",
        "aa",       "aaa",          "]]",       "[[",   "-1",   "0."}) {
    texts.emplace_back(token);
  }
  return texts;
}

// Whether the constraint takes the text, byte by byte, as a whole one.
inline bool takes(const Constraint& constraint, std::string_view text) {
  const auto matcher = constraint.begin();
  for (const char byte : text) {
    if (!matcher->accept(static_cast<unsigned char>(byte) + 1)) return false;
  }
  return matcher->may_end();
}

// Those of a mask, the lowest first.
inline std::vector<int32_t> ids_of(const std::vector<uint32_t>& mask) {
  std::vector<int32_t> ids;
  for (size_t id = 0; id < mask.size() * 32; ++id) {
    if ((mask[id / 32] >> (id % 32) & 1) != 0) ids.push_back(static_cast<int32_t>(id));
  }
  return ids;
}

}  // namespace recurve::testing

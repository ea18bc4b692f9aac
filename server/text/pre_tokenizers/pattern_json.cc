#include "server/text/pre_tokenizers/pattern_json.h"

#include <fmt/core.h>

#include "server/text/unsupported.h"

namespace recurve {

// A pattern that matches `text` and nothing else.
std::string literal_pattern(const std::string& text) {
  std::string pattern;
  for (const char c : text) {
    const bool plain = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                       static_cast<unsigned char>(c) >= 0x80 || c == '\n' || c == '\r' ||
                       c == '\t' || c == '\0';
    if (!plain) pattern.push_back('\\');
    pattern.push_back(c);
  }
  return pattern;
}

Regex read_pattern(Fields& fields) {
  Fields pattern(fields.require("pattern"), fields.where() + ".pattern");
  const bool literal = pattern.find("String") != nullptr;
  const std::string text = pattern.get_string(literal ? "String" : "Regex");
  pattern.finish();
  return Regex(literal ? literal_pattern(text) : text);
}

void refuse_type(const Fields& fields, const std::string& type) {
  throw UnsupportedTokenizer(
      fmt::format("{}.type = {} is not supported", fields.where(), quote(type)));
}

void check_steps(const Fields& fields, size_t steps) {
  constexpr size_t kMost = 64;
  if (steps < kMost) return;
  throw UnsupportedTokenizer(fmt::format(
      "{} is a chain of more than {} steps, which is not supported", fields.where(), kMost));
}

}  // namespace recurve

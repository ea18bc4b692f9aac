#include "server/constraint/text_walk.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <set>

#include "server/constraint/constraint.h"
#include "server/constraint/regex_walk.h"
#include "server/constraint/work_watch.h"

namespace recurve {
namespace {

// Other engines read two digits after \x, the library every digit.
void check_hexadecimal(std::string_view escape) {
  if (!escape.starts_with("\\x")) return;
  const size_t end = escape.find_first_not_of("0123456789abcdefABCDEF", 2);
  if (std::min(end, escape.size()) <= 4) return;
  throw ConstraintRefused(
      "grammar: \\x must have two digits, and no third digit after them: write \\u00 and two "
      "digits");
}

}  // namespace

bool nests_deeper_than(std::string_view json, int levels) {
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < json.size(); ++i) {
    const char c = json[i];
    if (in_string) {
      i += c == '\\';
      in_string = c != '"';
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      if (++depth > levels) return true;
    } else if (c == '}' || c == ']') {
      --depth;
    }
  }
  return false;
}

nlohmann::ordered_json parse_watched(std::string_view json, bool throws) {
  // Memory of a value, a list, and a name with its value, including spare capacity of lists.
  constexpr size_t kValue = 48, kList = 32, kNamed = 144;
  size_t bytes = 2 * json.size();
  bool in_string = false;
  for (size_t i = 0; i < json.size(); ++i) {
    const char c = json[i];
    if (c == '"') in_string = !in_string;
    if (in_string) {
      i += c == '\\';
    } else {
      bytes += c == ',' ? kValue : c == ':' ? kNamed : c == '{' || c == '[' ? kList : 0;
    }
  }
  WorkWatch::check(bytes);
  return nlohmann::ordered_json::parse(json, nullptr, throws);
}

void check_grammar(std::string_view grammar) {
  if (grammar.empty()) throw ConstraintRefused("grammar: it must have a rule named root");
  if (grammar.size() > kMostConstraintBytes) {
    throw ConstraintRefused(fmt::format("grammar: it must have at most {} bytes, got {}",
                                        kMostConstraintBytes, grammar.size()));
  }
  if (grammar.find('\0') != std::string_view::npos) {
    throw ConstraintRefused("grammar: it must not contain null characters");
  }
  int depth = 0;
  for (size_t i = 0; i < grammar.size(); ++i) {
    const char c = grammar[i];
    if (c == '\\') {
      check_hexadecimal(grammar.substr(i++));
      continue;
    }
    if (c == '(') ++depth;
    if (c == ')') --depth;
    if (depth > kMostNesting) {
      throw ConstraintRefused(
          fmt::format("grammar: brackets are nested more than {} levels deep", kMostNesting));
    }
    // Repeats are expanded, so their counts are limited.
    int64_t count = 0;
    for (size_t d = i + 1; c == '{' && d < grammar.size(); ++d) {
      const char digit = grammar[d];
      if (digit == ',') {
        count = 0;
      } else if (std::isdigit(static_cast<unsigned char>(digit)) != 0) {
        count = count * 10 + (digit - '0');
      } else {
        break;
      }
      if (count > kMostRegexRepeats) {
        throw ConstraintRefused(
            fmt::format("grammar: a repeat count can be at most {}", kMostRegexRepeats));
      }
    }
  }
}

std::vector<std::string> read_choices(std::string_view json) {
  const auto parsed = parse_watched(json);
  if (!parsed.is_array() || parsed.empty() || parsed.size() > kMostChoices ||
      json.size() > kMostConstraintBytes) {
    throw ConstraintRefused(fmt::format("choice: it must have 1 to {} strings, in at most {} bytes",
                                        kMostChoices, kMostConstraintBytes));
  }
  std::vector<std::string> choices;
  std::set<std::string> seen;
  for (const auto& one : parsed) {
    if (!one.is_string() || one.get_ref<const std::string&>().empty()) {
      throw ConstraintRefused("choice: each must be a non-empty string");
    }
    const auto& text = one.get_ref<const std::string&>();
    if (seen.insert(text).second) choices.push_back(text);
  }
  return choices;
}

// With \u and four digits, since the library reads every digit after \x.
std::string escaped_for_ebnf(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      escaped += '\\';
      escaped += c;
    } else if (byte < 0x20 || byte == 0x7f) {
      escaped += fmt::format("\\u{:04x}", byte);
    } else {
      escaped += c;
    }
  }
  return escaped;
}

}  // namespace recurve

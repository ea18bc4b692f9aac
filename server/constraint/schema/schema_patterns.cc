#include "server/constraint/schema/schema_patterns.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>

namespace recurve {
namespace {

constexpr std::string_view kDate =
    "[12][0-9]{3}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|"
    "02-(0[1-9]|1[0-9]|2[0-8]))";
constexpr std::string_view kTime =
    "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,6})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])";
constexpr std::string_view kByte = "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])";
constexpr std::string_view kLabel = "[a-z0-9]([a-z0-9-]{0,20}[a-z0-9])?";
constexpr std::string_view kPointer = "(/[a-zA-Z0-9_.-]*)*";

// The character in a regular expression, in a class or not.
std::string escaped(char c) {
  const bool is_special = std::string_view("^$.*+?\\()[]{}|/-").find(c) != std::string_view::npos;
  return is_special ? std::string("\\") + c : std::string(1, c);
}

bool is_plain(char c) { return c >= 0x20 && c <= 0x7e && c != '"' && c != '\\'; }

// The class of those characters of plain names for which `is_wanted` is true; empty if there is
// none.
std::string class_of_plain(const std::function<bool(char)>& is_wanted) {
  std::string ranges;
  const auto is_in = [&](char c) { return is_plain(c) && is_wanted(c); };
  for (char c = ' '; c <= '~'; ++c) {
    if (!is_in(c)) continue;
    const char first = c;
    while (is_in(static_cast<char>(c + 1))) ++c;
    ranges += escaped(first);
    if (c > first) ranges += '-' + escaped(c);
  }
  return ranges.empty() ? "" : "[" + ranges + "]";
}

}  // namespace

bool is_plain_name(std::string_view name) { return std::ranges::all_of(name, is_plain); }

std::optional<std::string> pattern_of_format(std::string_view name) {
  if (name == "date") return std::string(kDate);
  if (name == "time") return std::string(kTime);
  if (name == "date-time") return fmt::format("({})T{}", kDate, kTime);
  if (name == "uuid") {
    return "[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}";
  }
  if (name == "ipv4") return fmt::format("({0}\\.){{3}}{0}", kByte);
  if (name == "ipv6") return "([0-9a-f]{1,4}:){7}[0-9a-f]{1,4}";
  // An ASCII string is a valid internationalized one, a URI is a valid template without variables
  // and a valid reference.
  if (name == "uri" || name == "iri" || name == "uri-reference" || name == "iri-reference" ||
      name == "uri-template") {
    return fmt::format(
        "https?://{0}(\\.{0}){{0,3}}(:[1-9][0-9]{{0,3}})?(/[a-zA-Z0-9._~-]+)*/?"
        "(\\?[a-zA-Z0-9._~=&-]+)?(#[a-zA-Z0-9._~-]+)?",
        kLabel);
  }
  if (name == "json-pointer") return std::string(kPointer);
  if (name == "relative-json-pointer") {
    return fmt::format("(0|[1-9][0-9]{{0,3}})(#|{})", kPointer);
  }
  if (name == "duration") {
    return "P([0-9]{1,4}[YMW]|[0-9]{1,4}D(T[0-9]{1,2}[HMS])?|T[0-9]{1,4}[HMS])";
  }
  if (name == "hostname" || name == "idn-hostname")
    return fmt::format("{0}(\\.{0}){{0,8}}", kLabel);
  if (name == "email" || name == "idn-email") {
    return fmt::format(
        "[a-zA-Z0-9_+-]{{1,32}}(\\.[a-zA-Z0-9_+-]{{1,16}}){{0,2}}@{0}(\\.{0}){{1,4}}", kLabel);
  }
  return std::nullopt;
}

std::optional<NumberFormat> number_format(std::string_view name) {
  constexpr int64_t kMost = int64_t{1} << 53;
  for (const bool has_sign : {true, false}) {
    for (const int bits : {8, 16, 32, 64}) {
      if (name != fmt::format("{}int{}", has_sign ? "" : "u", bits)) continue;
      const int64_t values = bits == 64 ? kMost : int64_t{1} << (has_sign ? bits - 1 : bits);
      return NumberFormat{.least = has_sign ? -values : 0, .most = bits == 64 ? kMost : values - 1};
    }
  }
  return std::nullopt;
}

// At each position, either a character that continues no name and then any text, or one that
// continues some names and then the others of those.
std::string pattern_of_others(const std::vector<std::string>& names, size_t at) {
  std::map<char, std::vector<std::string>> continued;
  bool ends = false;  // a name ends here
  for (const std::string& name : names) {
    if (at == name.size()) {
      ends = true;
    } else {
      continued[name[at]].push_back(name);
    }
  }
  const std::string any = class_of_plain([](char) { return true; });
  if (continued.empty()) return any + (ends ? "+" : "*");
  std::string others = class_of_plain([&](char c) { return !continued.contains(c); });
  if (!others.empty()) others += any + "*";
  for (const auto& [character, rest] : continued) {
    if (!others.empty()) others += '|';
    others += escaped(character) + pattern_of_others(rest, at + 1);
  }
  return fmt::format("({}{})", others, ends ? "" : "|");
}

}  // namespace recurve

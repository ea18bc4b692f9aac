#pragma once
#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace recurve {

// Types of the JSON values that a parameter of a tool may have, as bits.
using ValueTypes = uint8_t;
inline constexpr ValueTypes kStringType = 1, kNumberType = 2, kBooleanType = 4, kNullType = 8,
                            kArrayType = 16, kObjectType = 32, kAnyType = 63;

// The types of a tool's parameters, by name. A name that is not listed has `others`.
struct ToolParameters {
  std::map<std::string, ValueTypes, std::less<>> types = {};
  ValueTypes others = kAnyType;
  ValueTypes of(std::string_view name) const {
    const auto found = types.find(name);
    return found == types.end() ? others : found->second;
  }
};
using ToolTypes = std::map<std::string, ToolParameters, std::less<>>;  // by name of the tool

inline constexpr std::string_view kJsonSpaces = " \n\t\r";

// Without JSON's white space at its ends.
inline std::string_view trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(kJsonSpaces);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kJsonSpaces) + 1 - begin);
}

// The length of the longest end of `text` that begins `wanted`, and is not all of it.
inline size_t begun(std::string_view text, std::string_view wanted) {
  size_t tail = std::min(text.size(), wanted.size() - 1);
  while (!wanted.starts_with(text.substr(text.size() - tail))) --tail;
  return tail;
}

// The bit of a JSON value's type; 0: the text is not JSON. For any text, without spaces around it.
inline ValueTypes type_of_json(std::string_view text) {
  if (text.empty() || !nlohmann::json::accept(text)) return 0;
  switch (text.front()) {
    case '"':
      return kStringType;
    case '{':
      return kObjectType;
    case '[':
      return kArrayType;
    case 't':
    case 'f':
      return kBooleanType;
    case 'n':
      return kNullType;
    default:
      return kNumberType;
  }
}

// Marks of Qwen3.5's form of calls.
inline constexpr std::string_view kParameterMark = "<parameter=", kFunctionMark = "<function=",
                                  kFunctionClose = "</function>";

// What ends a value of these types: JSON may have the mark in a string, but no line break.
constexpr std::string_view parameter_close(ValueTypes types) {
  constexpr std::string_view kClose = "\n</parameter>";
  return (types & (kArrayType | kObjectType)) != 0 ? kClose : kClose.substr(1);
}

}  // namespace recurve

#pragma once
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

namespace recurve {

// Parts of the library's structural tags.

inline nlohmann::ordered_json constant(std::string_view text) {
  if (text.empty()) return {{"type", "grammar"}, {"grammar", "root ::= \"\""}};
  return {{"type", "const_string"}, {"value", text}};
}
inline nlohmann::ordered_json sequence(nlohmann::ordered_json elements) {
  return {{"type", "sequence"}, {"elements", std::move(elements)}};
}

}  // namespace recurve

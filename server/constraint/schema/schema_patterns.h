#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace recurve {

// Whether a name has only printable ASCII characters that JSON does not escape.
bool is_plain_name(std::string_view name);

// A regular expression for strings of this format, stricter than its RFC, so that every validator
// accepts them; empty if the format is not supported.
std::optional<std::string> pattern_of_format(std::string_view name);

// The bounds of a format of integers.
struct NumberFormat {
  int64_t least = 0, most = 0;
};
// The formats of OpenAPI for integers, which JSON Schema does not have, int8 to uint64, with bounds
// of at most +-2^53, up to which integers are exact in a double. Empty for any other format.
std::optional<NumberFormat> number_format(std::string_view name);

// A regular expression for all plain names (is_plain_name) that are not in `names`, which are
// unique and have the same first `at` characters.
std::string pattern_of_others(const std::vector<std::string>& names, size_t at = 0);

}  // namespace recurve

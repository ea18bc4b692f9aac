#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace recurve {

// Whether a name is of printable ASCII, and is written in JSON as it is.
bool is_plain_name(std::string_view name);

// A regular expression of strings of this format, narrower than its RFC, so that everybody who
// checks formats takes them; nothing where the format is not enforced.
std::optional<std::string> pattern_of_format(std::string_view name);

// What a format says of numbers.
struct NumberFormat {
  bool whole = false;           // integers within the bounds alone
  int64_t least = 0, most = 0;  // of these
};
// Of OpenAPI's, which JSON Schema does not know: `int32` and the like are bounds, no further than
// all whole numbers are doubles, and `float` and `double`, how a program keeps it, say nothing;
// nothing where the format is none of them.
std::optional<NumberFormat> number_format(std::string_view name);

// A regular expression of the strings of printable ASCII, without those that JSON writes otherwise,
// that are none of `names`, which are different and begin alike up to `at`.
std::string pattern_of_others(const std::vector<std::string>& names, size_t at = 0);

}  // namespace recurve

#pragma once
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

// A regular expression of the strings of printable ASCII, without those that JSON writes otherwise,
// that are none of `names`, which are different and begin alike up to `at`.
std::string pattern_of_others(const std::vector<std::string>& names, size_t at = 0);

}  // namespace recurve

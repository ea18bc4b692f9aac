#pragma once

#include <string>
#include <string_view>

namespace recurve {

// The Unicode normalisation forms (UAX #15).
enum class NormalForm { kNfc, kNfd, kNfkc, kNfkd };

// `utf8` (valid UTF-8) in a normal form. O(n log n), whatever the text; the Unicode data is that of
// utf8proc.
std::string normalize(std::string_view utf8, NormalForm form);

}  // namespace recurve

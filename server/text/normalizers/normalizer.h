#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace recurve {

// The Unicode normalisation forms (UAX #15).
enum class NormalForm { kNfc, kNfd, kNfkc, kNfkd };

// `utf8` (valid UTF-8) in a normal form. O(n log n), whatever the text; the Unicode data is that of
// utf8proc.
std::string normalize(std::string_view utf8, NormalForm form);

// The last place in `utf8` (valid UTF-8) where it can be cut so that both parts are normalised
// each by itself, in any form, whatever comes behind it: in front of a starter that composes with
// nothing before it (UAX #15, section 9). 0 if there is none.
size_t last_normal_border(std::string_view utf8);

}  // namespace recurve

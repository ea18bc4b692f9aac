#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace recurve {

// The Unicode normalization forms (UAX #15).
enum class NormalForm { kNfc, kNfd, kNfkc, kNfkd };

// `utf8` (valid UTF-8) in a normal form, in O(n log n) for any text. The Unicode data is that of
// utf8proc.
std::string normalize(std::string_view utf8, NormalForm form);

// The last normalization boundary in `utf8` (valid UTF-8): the text before it and the text after
// it, whatever follows, can be normalized separately, in any form. It is before a starter that
// never composes with a character before it (UAX #15, section 9). 0 if there is none.
size_t last_normalization_boundary(std::string_view utf8);

}  // namespace recurve

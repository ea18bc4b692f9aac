#pragma once
#include <string>
#include <string_view>

namespace recurve {

inline constexpr size_t kMostTags = 128;

// The structural tag that the library reads for {"triggers": ["<fn="], "structures": [{"begin":
// "<fn=add>", "schema": {...}, "end": "</fn>"}, ...]}: free text in which each trigger begins one
// of the structures that begin with it, with what its schema allows and its end. Optional:
// "required": true, at least one; "single": true, at most one, and nothing behind it. Throws
// ConstraintRefused.
std::string enforceable_tags(std::string_view tags);

}  // namespace recurve

#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "server/constraint/constraint_library.h"

namespace recurve {

// The position in a character of UTF-8: 0 at its beginning; else it tells which bytes may follow.
using Utf8State = uint8_t;
inline constexpr int kUtf8States = 8;

// The state after these bytes; empty if they are not valid UTF-8 there (RFC 3629).
std::optional<Utf8State> utf8_state_after(Utf8State state, std::string_view bytes);

// Per state, a mask of the ids that can continue the text in valid UTF-8, without ids that have no
// text.
std::array<std::vector<uint32_t>, kUtf8States> utf8_masks(const TokenTexts& tokens);

}  // namespace recurve

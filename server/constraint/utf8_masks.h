#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "server/constraint/constraint_library.h"

namespace recurve {

// Where a text of UTF-8 stands within a character: 0 at its start; else which bytes may follow.
using Utf8State = uint8_t;
inline constexpr int kUtf8States = 8;

// The state behind these bytes; empty: they cannot be UTF-8 there. No surrogates, nothing overlong.
std::optional<Utf8State> utf8_state_after(Utf8State state, std::string_view bytes);

// The ids with a text with which a text of UTF-8 can go on, by state: one bit each.
std::array<std::vector<uint32_t>, kUtf8States> utf8_masks(const TokenTexts& tokens);

}  // namespace recurve

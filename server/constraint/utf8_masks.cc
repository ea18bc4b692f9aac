#include "server/constraint/utf8_masks.h"

namespace recurve {
namespace {

// The state after one more byte. In the states 1 to 3, as many continuation bytes must follow; 4 to
// 7 are the states after E0, ED, F0 and F4, whose next byte has a smaller range.
std::optional<Utf8State> state_after(Utf8State state, unsigned char byte) {
  const auto within = [byte](int low, int high, Utf8State next) {
    return byte >= low && byte <= high ? std::optional(next) : std::nullopt;
  };
  switch (state) {
    case 0:
      if (byte <= 0x7f) return 0;
      if (byte == 0xe0) return 4;
      if (byte == 0xed) return 5;
      if (byte == 0xf0) return 6;
      if (byte == 0xf4) return 7;
      if (byte >= 0xc2 && byte <= 0xdf) return 1;
      if (byte >= 0xe1 && byte <= 0xef) return 2;
      return within(0xf1, 0xf3, 3);
    case 1:
      return within(0x80, 0xbf, 0);
    case 2:
      return within(0x80, 0xbf, 1);
    case 3:
      return within(0x80, 0xbf, 2);
    case 4:
      return within(0xa0, 0xbf, 1);
    case 5:
      return within(0x80, 0x9f, 1);
    case 6:
      return within(0x90, 0xbf, 2);
    default:
      return within(0x80, 0x8f, 2);
  }
}

}  // namespace

std::optional<Utf8State> utf8_state_after(Utf8State state, std::string_view bytes) {
  for (const char byte : bytes) {
    const auto next = state_after(state, static_cast<unsigned char>(byte));
    if (!next) return std::nullopt;
    state = *next;
  }
  return state;
}

std::array<std::vector<uint32_t>, kUtf8States> utf8_masks(const TokenTexts& tokens) {
  std::array<std::vector<uint32_t>, kUtf8States> masks;
  for (Utf8State state = 0; state < kUtf8States; ++state) {
    masks[state].resize((tokens.size() + 31) / 32);
    for (size_t id = 0; id < tokens.size(); ++id) {
      if (tokens[id].empty() || !utf8_state_after(state, tokens[id])) continue;
      masks[state][id / 32] |= uint32_t{1} << (id % 32);
    }
  }
  return masks;
}

}  // namespace recurve

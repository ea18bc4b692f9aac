#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace recurve {

// Lower-case hexadecimal digits.
inline bool is_hex(std::string_view text) {
  return text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

inline std::string to_hex(std::string_view bytes) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string hex;
  for (const char byte : bytes) {
    hex += kDigits[static_cast<uint8_t>(byte) >> 4];
    hex += kDigits[static_cast<uint8_t>(byte) & 15];
  }
  return hex;
}

// hex: an even number of digits, for which is_hex() is true.
inline std::string from_hex(std::string_view hex) {
  const auto digit = [&](size_t at) { return hex[at] <= '9' ? hex[at] - '0' : hex[at] - 'a' + 10; };
  std::string bytes;
  for (size_t at = 0; at < hex.size(); at += 2) {
    bytes += static_cast<char>(digit(at) * 16 + digit(at + 1));
  }
  return bytes;
}

}  // namespace recurve

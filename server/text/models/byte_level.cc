#include "server/text/models/byte_level.h"

#include <array>

namespace recurve {
namespace {

constexpr int kCodePoints = 0x100 + 68;

struct ByteLevelMap {
  std::array<uint16_t, 256> code_point{};      // [byte]
  std::array<int16_t, kCodePoints> byte_of{};  // [code point], -1: none
};

constexpr bool is_printable(int byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

constexpr ByteLevelMap build_map() {
  ByteLevelMap map;
  map.byte_of.fill(-1);
  int next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    const int code_point = is_printable(byte) ? byte : next++;
    map.code_point[static_cast<size_t>(byte)] = static_cast<uint16_t>(code_point);
    map.byte_of[static_cast<size_t>(code_point)] = static_cast<int16_t>(byte);
  }
  return map;
}

constexpr ByteLevelMap kMap = build_map();

}  // namespace

void encode_byte_level(std::string_view bytes, std::string& out) {
  for (const char c : bytes) {
    const unsigned code_point = kMap.code_point[static_cast<unsigned char>(c)];
    if (code_point < 0x80) {
      out.push_back(static_cast<char>(code_point));
    } else {
      out.push_back(static_cast<char>(0xC0 | code_point >> 6));
      out.push_back(static_cast<char>(0x80 | (code_point & 0x3F)));
    }
  }
}

bool decode_byte_level(std::string_view characters, std::string& out) {
  for (size_t i = 0; i < characters.size(); ++i) {
    unsigned code_point = static_cast<unsigned char>(characters[i]);
    if (code_point >= 0x80) {
      if (code_point < 0xC2 || code_point > 0xDF || i + 1 == characters.size()) return false;
      code_point = (code_point & 0x1F) << 6 | (static_cast<unsigned char>(characters[++i]) & 0x3F);
    }
    if (code_point >= kCodePoints || kMap.byte_of[code_point] < 0) return false;
    out.push_back(static_cast<char>(kMap.byte_of[code_point]));
  }
  return true;
}

std::optional<std::string> decode_byte_level(std::string_view characters) {
  std::string bytes;
  bytes.reserve(characters.size());
  if (!decode_byte_level(characters, bytes)) return std::nullopt;
  return bytes;
}

}  // namespace recurve

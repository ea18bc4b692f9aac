#include "server/text/utf8.h"

#include <algorithm>

namespace recurve {
namespace {

// What a character's first byte says: the character's size (0: none begins so) and the range of its
// second byte. That is narrower after E0, ED, F0 and F4, which excludes overlong forms, surrogates
// and what lies above U+10FFFF (Unicode 15, table 3-7).
struct Lead {
  int size;
  unsigned char low = 0x80;
  unsigned char high = 0xBF;
};

Lead lead_of(unsigned char byte) {
  if (byte < 0x80) return {1};
  if (byte < 0xC2 || byte > 0xF4) return {0};
  Lead lead{byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4};
  if (byte == 0xE0) lead.low = 0xA0;
  if (byte == 0xF0) lead.low = 0x90;
  if (byte == 0xED) lead.high = 0x9F;
  if (byte == 0xF4) lead.high = 0x8F;
  return lead;
}

// The bytes of the character that `bytes` begin with; 0 if they end within it, -1 if it is none.
int character_size(std::string_view bytes) {
  const Lead lead = lead_of(static_cast<unsigned char>(bytes[0]));
  if (lead.size == 0) return -1;
  for (size_t i = 1; i < static_cast<size_t>(lead.size); ++i) {
    if (i == bytes.size()) return 0;
    const auto byte = static_cast<unsigned char>(bytes[i]);
    const bool follows = i == 1 ? byte >= lead.low && byte <= lead.high : (byte & 0xC0) == 0x80;
    if (!follows) return -1;
  }
  return lead.size;
}

}  // namespace

size_t whole_characters(std::string_view utf8, size_t bytes) {
  size_t size = std::min(bytes, utf8.size());
  while (size > 0 && size < utf8.size() && is_continuation(utf8[size])) --size;
  return size;
}

size_t characters_before(std::string_view utf8, size_t at, size_t count) {
  for (; count > 0 && at > 0; --count) {
    do --at;
    while (at > 0 && is_continuation(utf8[at]));
  }
  return at;
}

void Utf8Assembler::push(std::string_view bytes, std::string& out) {
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    if (size_ == 0) {
      start(byte, out);
      continue;
    }
    if (byte < low_ || byte > high_) {  // the character ended too early; this byte starts anew
      reject(out);
      start(byte, out);
      continue;
    }
    low_ = 0x80;
    high_ = 0xBF;
    pending_[size_++] = c;
    if (size_ == need_) {
      out.append(pending_, static_cast<size_t>(size_));
      size_ = 0;
    }
  }
}

void Utf8Assembler::finish(std::string& out) {
  if (size_ > 0) reject(out);
}

void Utf8Assembler::start(unsigned char byte, std::string& out) {
  const Lead lead = lead_of(byte);
  if (lead.size == 1) {
    out.push_back(static_cast<char>(byte));
    return;
  }
  if (lead.size == 0) {
    out.append(kReplacementCharacter);
    return;
  }
  need_ = lead.size;
  low_ = lead.low;
  high_ = lead.high;
  pending_[0] = static_cast<char>(byte);
  size_ = 1;
}

void Utf8Assembler::reject(std::string& out) {
  out.append(kReplacementCharacter);
  size_ = 0;
}

std::string to_valid_utf8(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size());
  Utf8Assembler assembler;
  assembler.push(bytes, out);
  assembler.finish(out);
  return out;
}

Utf8Prefix utf8_prefix(std::string_view bytes) {
  size_t whole = 0;
  while (whole < bytes.size()) {
    const int size = character_size(bytes.substr(whole));
    if (size <= 0) return {whole, size < 0};
    whole += static_cast<size_t>(size);
  }
  return {whole, false};
}

std::u32string to_utf32(std::string_view utf8) {
  std::u32string out;
  for (const char c : utf8) {
    const auto byte = static_cast<unsigned char>(c);
    if ((byte & 0xC0) == 0x80) {
      out.back() = out.back() << 6 | (byte & 0x3Fu);
    } else {
      out.push_back(byte < 0x80 ? byte : byte & (byte < 0xE0 ? 0x1Fu : byte < 0xF0 ? 0x0Fu : 7u));
    }
  }
  return out;
}

bool is_valid_utf8(std::string_view bytes) { return utf8_prefix(bytes).whole == bytes.size(); }

}  // namespace recurve

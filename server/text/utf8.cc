#include "server/text/utf8.h"

namespace recurve {

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

// The second byte's range is narrower after E0, ED, F0 and F4: that excludes overlong forms,
// surrogates and what lies above U+10FFFF (Unicode 15, table 3-7).
void Utf8Assembler::start(unsigned char byte, std::string& out) {
  if (byte < 0x80) {
    out.push_back(static_cast<char>(byte));
    return;
  }
  if (byte < 0xC2 || byte > 0xF4) {
    out.append(kReplacementCharacter);
    return;
  }
  need_ = byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
  low_ = byte == 0xE0 ? 0xA0 : byte == 0xF0 ? 0x90 : 0x80;
  high_ = byte == 0xED ? 0x9F : byte == 0xF4 ? 0x8F : 0xBF;
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

// Valid text is what replacement leaves as it is.
bool is_valid_utf8(std::string_view bytes) { return to_valid_utf8(bytes) == bytes; }

}  // namespace recurve

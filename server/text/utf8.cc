#include "server/text/utf8.h"

#include <algorithm>

#include "server/text/characters.h"
#include "server/text/cut.h"

namespace recurve {

size_t whole_characters(std::string_view utf8, size_t bytes) {
  size_t size = std::min(bytes, utf8.size());
  while (size > 0 && size < utf8.size() && is_continuation(utf8[size])) --size;
  return size;
}

size_t next_character(std::string_view utf8, size_t at) {
  do ++at;
  while (at < utf8.size() && is_continuation(utf8[at]));
  return at;
}

size_t count_characters(std::string_view utf8) {
  return utf8.size() - static_cast<size_t>(std::ranges::count_if(utf8, is_continuation));
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
    if (byte < low_ || byte > high_) {  // the character is incomplete; this byte begins the next
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
  const Utf8Lead lead = utf8_lead(byte);
  if (lead.size == 1) {
    out.push_back(static_cast<char>(byte));
    return;
  }
  if (lead.size == 0) {
    out.append(kReplacementCharacter);
    return;
  }
  need_ = static_cast<int>(lead.size);
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
  bool ends = false;
  while (whole < bytes.size()) {
    const size_t size = character_size(bytes.substr(whole), &ends);
    if (size == 0) return {whole, !ends};
    whole += size;
  }
  return {whole, false};
}

std::u32string to_utf32(std::string_view utf8) {
  std::u32string out;
  while (!utf8.empty()) {
    const Character next = first_code_point(utf8);
    out.push_back(next.code_point);
    utf8.remove_prefix(next.bytes);
  }
  return out;
}

bool is_valid_utf8(std::string_view bytes) { return utf8_prefix(bytes).whole == bytes.size(); }

}  // namespace recurve

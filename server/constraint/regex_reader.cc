#include "server/constraint/regex_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>

#include "server/constraint/constraint.h"
#include "server/constraint/regex_walk.h"
#include "server/constraint/utf8_masks.h"

namespace recurve {
namespace {

// The code point of one character in UTF-8.
uint32_t code_of(std::string_view character) {
  uint32_t code = static_cast<unsigned char>(character.front());
  if (character.size() > 1) code &= 0x7fu >> character.size();
  for (const char byte : character.substr(1)) {
    code = code << 6 | (static_cast<unsigned char>(byte) & 0x3fu);
  }
  return code;
}

}  // namespace

void RegexReader::refuse(const std::string& why) const {
  throw ConstraintRefused(
      fmt::format("regular expression, at byte {}: {}", std::min(at_, text_.size()), why));
}

char RegexReader::take() {
  if (ended()) refuse("unexpected end");
  return text_[at_++];
}

RegexUnit RegexReader::read_unit() {
  if (next_is('\\')) {
    ++at_;
    return read_escape();
  }
  const size_t from = at_;
  take();
  while (!ended() && (static_cast<unsigned char>(text_[at_]) & 0xc0) == 0x80) ++at_;
  const std::string_view bytes = text_.substr(from, at_ - from);
  if (utf8_state_after(0, bytes) != Utf8State{0}) refuse("it is not UTF-8");
  return {.bytes = bytes, .character = code_of(bytes)};
}

CharacterSet RegexReader::read_class() {
  const bool is_negated = next_is('^');
  if (is_negated) ++at_;
  if (next_is(']')) refuse("a class must not be empty; write \\] for the character");
  CharacterSet set;
  while (!next_is(']')) {
    const RegexUnit first = read_class_unit();
    if (first.is_set) {
      set.add(first.set);
    } else {
      set.add(first.character, last_of_range(first.character));
    }
  }
  ++at_;
  return is_negated ? set.complement() : set;
}

CharacterSet RegexReader::read_json_escape() {
  if (take() != '[') refuse("an escape must be a class");
  return characters_of_json_escapes(read_class());
}

std::pair<int, std::optional<int>> RegexReader::read_repeat() {
  if (next_is('*') || next_is('+')) return {take() == '*' ? 0 : 1, std::nullopt};
  if (next_is('?')) {
    ++at_;
    return {0, 1};
  }
  if (!next_is('{')) return {1, 1};
  ++at_;
  const int least = read_number();
  std::optional<int> most = least;
  if (next_is(',')) {
    ++at_;
    most.reset();
    if (!next_is('}')) most = read_number();
  }
  if (take() != '}') refuse("a repeat in braces must be {m}, {m,} or {m,n}");
  if (most && *most < least) refuse("in {m,n}, m must not be greater than n");
  return {least, most};
}

RegexUnit RegexReader::read_class_unit() {
  if (next_is('[')) refuse("in a class, write \\[ for the character [");
  return read_unit();
}

RegexUnit RegexReader::read_escape() {
  const char c = take();
  if (std::string_view("dwsDWS").find(c) != std::string_view::npos) {
    return {.is_set = true, .set = characters_of_escape(c)};
  }
  constexpr std::string_view kNames = "tnrfv", kControls = "\t\n\r\f\v";
  if (const size_t at = kNames.find(c); at != std::string_view::npos) {
    return {.bytes = kControls.substr(at, 1), .character = static_cast<uint32_t>(kControls[at])};
  }
  if (rewritten_ && (c == 'u' || c == 'U')) return read_code(c == 'u' ? 4 : 8);
  if (kRegexSpecial.find(c) != std::string_view::npos) {
    return {.bytes = text_.substr(at_ - 1, 1), .character = static_cast<uint32_t>(c)};
  }
  --at_;
  if (c == 'b' || c == 'B') {
    refuse(fmt::format("\\{} is not supported: write the characters around the word", c));
  }
  refuse(
      fmt::format("\\{} is not supported; the escapes are \\d \\w \\s \\D \\W \\S \\t \\n \\r "
                  "\\f \\v and those of ^ $ . * + ? \\ ( ) [ ] {{ }} | / -",
                  std::isprint(static_cast<unsigned char>(c)) != 0 ? c : '?'));
}

// A character by its code, as CharacterSet::to_class() writes it, in a class.
RegexUnit RegexReader::read_code(size_t digits) {
  RegexUnit unit;
  const char* begin = text_.data() + std::min(at_, text_.size());
  const char* end = begin + std::min(digits, text_.size() - std::min(at_, text_.size()));
  const auto [read, error] = std::from_chars(begin, end, unit.character, 16);
  if (error != std::errc() || read != begin + digits) refuse("a code has too few digits");
  at_ += digits;
  return unit;
}

// The last character of a range that begins with `first`; `first` if there is no range.
uint32_t RegexReader::last_of_range(uint32_t first) {
  if (!next_is('-') || text_.substr(at_ + 1).starts_with(']')) return first;
  ++at_;
  const RegexUnit last = read_class_unit();
  if (last.is_set || last.character < first) {
    refuse("a range must end with a character that is not less than its first");
  }
  return last.character;
}

int RegexReader::read_number() {
  int value = 0;
  const size_t from = at_;
  while (!ended() && std::isdigit(static_cast<unsigned char>(text_[at_])) != 0) {
    value = value * 10 + (text_[at_++] - '0');
    if (value > kMostRegexRepeats) {
      refuse(fmt::format("a repeat count can be at most {}", kMostRegexRepeats));
    }
  }
  if (at_ == from) refuse("a repeat in braces must be {m}, {m,} or {m,n}");
  return value;
}

}  // namespace recurve

#include "server/constraint/regex_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

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

CharacterSet plain_in_json() {
  CharacterSet others(0, 0x1f);
  others.add('"', '"');
  others.add('\\', '\\');
  return others.complement();
}

CharacterSet plain_ascii() { return CharacterSet(0x20, 0x7e).within(plain_in_json()); }

void RegexReader::refuse(const std::string& why) const {
  throw ConstraintRefused(
      fmt::format("regular expression, at byte {}: {}", std::min(at_, text_.size()), why));
}

char RegexReader::take() {
  if (ended()) refuse("unexpected end");
  return text_[at_++];
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

CharacterSet RegexReader::read_class() {
  const bool is_negated = next_is('^');
  if (is_negated) ++at_;
  if (next_is(']')) refuse("a class must not be empty; write \\] for the character");
  CharacterSet set;
  bool has_sets = false;
  while (!next_is(']')) {
    const RegexUnit first = read_class_unit();
    has_sets |= first.is_set;
    if (first.is_set) {
      set.add(first.set);
    } else {
      set.add(first.character, last_of_range(first.character));
    }
  }
  ++at_;
  if (!is_negated) return set;
  // For other validators, \d, \w and \s also match characters outside of ASCII.
  return in_json_ && has_sets ? set.complement().within(plain_ascii()) : set.complement();
}

uint32_t RegexReader::last_of_range(uint32_t first) {
  if (!next_is('-') || text_.substr(at_ + 1).starts_with(']')) return first;
  ++at_;
  const RegexUnit last = read_class_unit();
  if (last.is_set || last.character < first) {
    refuse("a range must end with a character that is not less than its first");
  }
  return last.character;
}

RegexUnit RegexReader::read_class_unit() {
  if (next_is('[')) refuse("in a class, write \\[ for the character [");
  const RegexUnit unit = read_unit();
  if (!unit.is_set) check_character(unit.character, /*in_class=*/true);
  return unit;
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

RegexUnit RegexReader::read_escape() {
  const char c = take();
  if (in_json_ && std::string_view("DWS").find(c) != std::string_view::npos) {
    refuse(fmt::format(
        "\\{} matches other characters in other engines: write a class such as [!-~]", c));
  }
  if (std::string_view("dws").find(c) != std::string_view::npos) {
    const CharacterSet set = characters_of_escape(c);
    return {.is_set = true, .set = in_json_ ? set.within(plain_ascii()) : set};
  }
  if (std::string_view("DWS").find(c) != std::string_view::npos) {
    return {.is_set = true,
            .set = characters_of_escape(static_cast<char>(std::tolower(c))).complement()};
  }
  constexpr std::string_view kNames = "tnrfv", kControls = "\t\n\r\f\v";
  if (const size_t at = kNames.find(c); at != std::string_view::npos) {
    if (in_json_) refuse(fmt::format("\\{} must be escaped in JSON, which is not supported", c));
    return {.bytes = kControls.substr(at, 1), .character = static_cast<uint32_t>(kControls[at])};
  }
  if (kRegexSpecial.find(c) != std::string_view::npos) {
    if (c == '\\' && in_json_) refuse("a \\ must be escaped in JSON, which is not supported");
    return {.bytes = text_.substr(at_ - 1, 1), .character = static_cast<uint32_t>(c)};
  }
  --at_;
  refuse(
      fmt::format("\\{} is not supported; the escapes are \\d \\w \\s \\D \\W \\S \\t \\n \\r "
                  "\\f \\v and those of ^ $ . * + ? \\ ( ) [ ] {{ }} | / -",
                  std::isprint(static_cast<unsigned char>(c)) != 0 ? c : '?'));
}

void RegexReader::check_character(uint32_t c, bool in_class) const {
  if (!in_json_) return;
  if (c < 0x20 || c > 0x7e) refuse("in a schema, only printable ASCII characters are supported");
  if (c == '"' && !in_class) refuse("a \" must be escaped in JSON, which is not supported");
}

}  // namespace recurve

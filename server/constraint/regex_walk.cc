#include "server/constraint/regex_walk.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "server/constraint/character_set.h"
#include "server/constraint/constraint.h"
#include "server/constraint/text_walk.h"
#include "server/constraint/utf8_masks.h"

namespace recurve {
namespace {

// Characters that can be escaped.
constexpr std::string_view kRegexSpecial = "^$.*+?\\()[]{}|/-";

// One character of a regular expression: a literal, or a set like \d.
struct RegexUnit {
  bool is_set = false;
  CharacterSet set = {};
  std::string_view bytes = {};  // of the literal
  uint32_t character = 0;
};

// The code point of one character in UTF-8.
uint32_t code_of(std::string_view character) {
  uint32_t code = static_cast<unsigned char>(character.front());
  if (character.size() > 1) code &= 0x7fu >> character.size();
  for (const char byte : character.substr(1)) {
    code = code << 6 | (static_cast<unsigned char>(byte) & 0x3fu);
  }
  return code;
}

// Characters that need no escape in a JSON string.
CharacterSet plain_in_json() {
  CharacterSet others(0, 0x1f);
  others.add('"', '"');
  others.add('\\', '\\');
  return others.complement();
}

// Those with a short escape, and the letter behind its backslash. Other control characters are not
// generated.
constexpr std::string_view kEscapedInJson = "\"\\\b\f\n\r\t", kJsonEscapes = "\"\\bfnrt";

// Those of `from` in the set, as the ones of `to` at the same index.
CharacterSet mapped(const CharacterSet& set, std::string_view from, std::string_view to) {
  CharacterSet result;
  for (size_t i = 0; i < from.size(); ++i) {
    const CharacterSet one(static_cast<uint32_t>(from[i]), static_cast<uint32_t>(from[i]));
    if (!set.within(one).empty()) {
      result.add(static_cast<uint32_t>(to[i]), static_cast<uint32_t>(to[i]));
    }
  }
  return result;
}

// Parses the elements of a regular expression. Throws ConstraintRefused, with the position, for
// what is invalid or not supported.
class RegexReader {
 public:
  // `rewritten`: the text is a result of json_pattern().
  RegexReader(std::string_view text, bool in_json, bool rewritten = false)
      : text_(text), in_json_(in_json), rewritten_(rewritten) {}

 protected:
  [[noreturn]] void refuse(const std::string& why) const {
    throw ConstraintRefused(
        fmt::format("regular expression, at byte {}: {}", std::min(at_, text_.size()), why));
  }

  bool ended() const { return at_ == text_.size(); }
  bool next_is(char c) const { return !ended() && text_[at_] == c; }

  char take() {
    if (ended()) refuse("unexpected end");
    return text_[at_++];
  }

  // A literal, or an escape.
  RegexUnit read_unit() {
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

  // A class, after its [.
  CharacterSet read_class() {
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

  // The bounds of a repeat, {1, 1} if there is none; the second is empty if there is no upper
  // bound.
  std::pair<int, std::optional<int>> read_repeat() {
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

  const std::string_view text_;
  const bool in_json_, rewritten_;
  size_t at_ = 0;

 private:
  RegexUnit read_class_unit() {
    if (next_is('[')) refuse("in a class, write \\[ for the character [");
    return read_unit();
  }

  RegexUnit read_escape() {
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
  RegexUnit read_code(size_t digits) {
    RegexUnit unit;
    const char* begin = text_.data() + std::min(at_, text_.size());
    const char* end = begin + std::min(digits, text_.size() - std::min(at_, text_.size()));
    const auto [read, error] = std::from_chars(begin, end, unit.character, 16);
    if (error != std::errc() || read != begin + digits) refuse("a code has too few digits");
    at_ += digits;
    return unit;
  }

  // The last character of a range that begins with `first`; `first` if there is no range.
  uint32_t last_of_range(uint32_t first) {
    if (!next_is('-') || text_.substr(at_ + 1).starts_with(']')) return first;
    ++at_;
    const RegexUnit last = read_class_unit();
    if (last.is_set || last.character < first) {
      refuse("a range must end with a character that is not less than its first");
    }
    return last.character;
  }

  int read_number() {
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
};

// \n is a line break in every engine, the others also in ECMA-262.
CharacterSet any_but_line_breaks() {
  CharacterSet breaks('\n', '\n');
  breaks.add('\r', '\r');
  breaks.add(0x2028, 0x2029);
  return breaks.complement();
}

std::string escaped_in_regex(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    if (kRegexSpecial.find(c) != std::string_view::npos) escaped += '\\';
    escaped += c;
  }
  return escaped;
}

// Part of the regular expression for the library, its number of characters with repeats expanded,
// and the lengths of texts that match it.
struct Piece {
  std::string text = {};
  int64_t positions = 0;
  TextLengths lengths = {};

  void add(const Piece& other) {
    text += other.text;
    positions += other.positions;
    lengths.least += other.lengths.least;
    lengths.most = lengths.most && other.lengths.most
                       ? std::optional(*lengths.most + *other.lengths.most)
                       : std::nullopt;
  }
};

// Rewrites a regular expression for the library, with the same meaning but only characters,
// classes, groups, |, * and +, and classes as lists of their characters. The library's automata for
// ? and counts match too much, and it misreads some classes such as [\^a].
class RegexWalk : RegexReader {
 public:
  using RegexReader::RegexReader;

  // `lengths`: set to those of the texts that match, unless null. `contains`: the expression
  // matches a part of the text, where it has no anchors.
  std::string run(TextLengths* lengths, bool contains = false) {
    contains_ = contains;
    if (!rewritten_ && text_.size() > kMostRegexBytes) {
      refuse(fmt::format("it must have at most {} bytes, got {}", kMostRegexBytes, text_.size()));
    }
    Piece all = read_alternatives(0, {.start = true, .end = true});
    if (at_ < text_.size()) refuse("unexpected )");
    if (lengths != nullptr) *lengths = all.lengths;
    return std::move(all.text);
  }

 private:
  // Whether a part of the expression is the first or the last one, so that it may have an anchor.
  struct Edges {
    bool start = false, end = false;
  };

  Piece read_alternatives(int depth, Edges edges) {
    if (depth > kMostNesting)
      refuse(fmt::format("groups are nested more than {} levels deep", kMostNesting));
    Piece all;
    std::optional<TextLengths> before;  // of the alternatives so far
    while (true) {
      const size_t from = all.text.size();
      all.lengths = {};
      read_sequence(depth, edges, &all);
      if (all.text.size() == from) all.text += nothing();
      if (before) {
        all.lengths.least = std::min(all.lengths.least, before->least);
        all.lengths.most = all.lengths.most && before->most
                               ? std::optional(std::max(*all.lengths.most, *before->most))
                               : std::nullopt;
      }
      if (!next_is('|')) return all;
      before = all.lengths;
      all.text += take();
    }
  }

  // One alternative. A group at an edge has the anchors, or what may stand around the match.
  void read_sequence(int depth, Edges edges, Piece* all) {
    bool start = edges.start, closed = false;
    if (start && next_is('^')) {
      ++at_;
      start = false;
    } else if (start && !is_single_group()) {
      if (contains_) all->add(any_text());
      start = false;
    }
    while (!ended() && !next_is('|') && !next_is(')')) {
      if (next_is('$')) {
        ++at_;
        if (!edges.end || !sequence_ends(at_)) {
          --at_;
          refuse("$ is only supported at the end");
        }
        return;
      }
      const bool group = is_single_group();
      closed = group && edges.end && sequence_ends(end_of_group());
      all->add(read_repeated(depth, {.start = group && start, .end = closed}));
      start = false;
      if (all->positions > kMostRegexPositions) {
        refuse(fmt::format("with repeats expanded it must have at most {} characters",
                           kMostRegexPositions));
      }
    }
    if (edges.end && !closed && contains_) all->add(any_text());
  }

  bool sequence_ends(size_t at) const {
    return at >= text_.size() || text_[at] == '|' || text_[at] == ')';
  }

  // The index after the group that begins here; the text's end if the group is not closed.
  size_t end_of_group() const {
    int depth = 0;
    bool in_class = false;
    for (size_t at = at_; at < text_.size(); ++at) {
      const char c = text_[at];
      if (c == '\\') {
        ++at;
      } else if (in_class) {
        in_class = c != ']';
      } else if (c == '[') {
        in_class = true;
      } else if (c == '(') {
        ++depth;
      } else if (c == ')' && --depth == 0) {
        return at + 1;
      }
    }
    return text_.size();
  }
  // Whether a group begins here that is not repeated.
  bool is_single_group() const {
    if (!next_is('(')) return false;
    const size_t end = end_of_group();
    return end == text_.size() ||
           std::string_view("*+?{").find(text_[end]) == std::string_view::npos;
  }

  Piece any_text() const {
    return {one_of(CharacterSet(0, CharacterSet::kLast)).text + "*", 1, {0, std::nullopt}};
  }

  Piece read_repeated(int depth, Edges edges) {
    const Piece one = read_one(depth, edges);
    const auto [least, most] = read_repeat();
    if (next_is('?')) ++at_;  // lazy: matches the same texts
    if (next_is('*') || next_is('+') || next_is('{')) refuse("a repeat must not follow a repeat");
    Piece all = repeated(one, least, most);
    const auto& [fewest, longest] = one.lengths;
    all.lengths = {fewest * least,
                   longest && most ? std::optional(*longest * *most) : std::nullopt};
    return all;
  }

  Piece repeated(const Piece& one, int least, std::optional<int> most) {
    if (one.positions * std::max(least, most.value_or(1)) > kMostRegexPositions) {
      refuse(fmt::format("with repeats expanded it must have at most {} characters",
                         kMostRegexPositions));
    }
    Piece all;
    if (!most && least <= 1) return {one.text + (least == 0 ? "*" : "+"), one.positions};
    for (int i = 0; i < least; ++i) all.add(one);
    if (!most) all.add({one.text + "*", one.positions});
    // Optional repeats are nested, at most kNest of them.
    constexpr int kNest = 16;
    for (int optional = most.value_or(least) - least; optional > 0; optional -= kNest) {
      std::string close;
      for (int i = 0; i < std::min(optional, kNest); ++i) {
        all.add({"(" + nothing() + "|" + one.text, one.positions});
        close += ')';
      }
      all.text += close;
    }
    return all;
  }

  Piece read_one(int depth, Edges edges) {
    const size_t from = at_;
    const char c = take();
    switch (c) {
      case '(':
        return read_group(depth, edges);
      case '[':
        return one_of(read_class());
      case '.':
        return one_of(any_but_line_breaks());
      case '^':
        --at_;
        refuse("^ is only supported at the start");
      case '*':
      case '+':
      case '?':
      case '{':
        --at_;
        refuse(fmt::format("{} follows nothing that it could repeat: write \\{} for the character",
                           c, c));
      default:
        break;
    }
    at_ = from;
    const RegexUnit unit = read_unit();
    if (rewritten_ && !unit.is_set && unit.character == '\\') return read_json_escape();
    return unit.is_set ? one_of(unit.set) : literal(unit);
  }

  Piece one_of(const CharacterSet& set) const {
    if (rewritten_) return within_parameter(set);
    if (!in_json_) {
      if (set.empty()) refuse("this class has no characters");
      return {set.to_class(), 1, {1, 1}};
    }
    const CharacterSet plain = set.within(plain_in_json()),
                       escapes = mapped(set, kEscapedInJson, kJsonEscapes);
    if (plain.empty() && escapes.empty()) {
      refuse("this class has no character that JSON writes as itself or with a short escape");
    }
    if (escapes.empty()) return {plain.to_class(), 1, {1, 1}};
    return {fmt::format("({}{}\\\\{})", plain.empty() ? "" : plain.to_class(),
                        plain.empty() ? "" : "|", escapes.to_class()),
            1,
            {1, 1}};
  }

  // What follows the backslash of an escape, as one_of() has written it.
  Piece read_json_escape() {
    if (take() != '[') refuse("an escape must be a class");
    return one_of(mapped(read_class(), kJsonEscapes, kEscapedInJson));
  }

  // The characters that do not begin the mark after a parameter.
  Piece within_parameter(const CharacterSet& set) const {
    const CharacterSet within = set.within(CharacterSet('<', '<').complement());
    if (within.empty()) refuse("it needs a <, which the model's form of calls does not allow");
    return {within.to_class(), 1, {1, 1}};
  }

  Piece literal(const RegexUnit& unit) const {
    if (rewritten_ && unit.character == '<') return within_parameter({'<', '<'});
    if (!in_json_) return {'"' + escaped_for_ebnf(unit.bytes) + '"', 1, {1, 1}};
    const CharacterSet one(unit.character, unit.character);
    const bool is_plain = unit.character <= 0x7e && !one.within(plain_in_json()).empty();
    return is_plain ? Piece{escaped_in_regex(unit.bytes), 1, {1, 1}} : one_of(one);
  }

  Piece read_group(int depth, Edges edges) {
    if (next_is('?')) {
      ++at_;
      if (take() != ':') refuse("of the groups with ?, only (?:...) is supported");
    }
    const Piece within = read_alternatives(depth + 1, edges);
    if (take() != ')') refuse("a group is not closed");
    return {"(" + within.text + ")", within.positions, within.lengths};
  }

  // The empty text as an alternative.
  std::string nothing() const { return in_json_ ? "" : "\"\""; }

  bool contains_ = false;
};

}  // namespace

std::string ebnf_of_regex(std::string_view regex) { return RegexWalk(regex, false).run(nullptr); }

std::string ebnf_of_json_pattern(std::string_view pattern) {
  return RegexWalk(pattern, /*in_json=*/false, /*rewritten=*/true).run(nullptr);
}

std::string json_pattern(std::string_view regex, PatternUse use, TextLengths* lengths) {
  return RegexWalk(regex, true).run(lengths, use == PatternUse::kContains);
}

}  // namespace recurve

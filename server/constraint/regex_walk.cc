#include "server/constraint/regex_walk.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "server/constraint/character_set.h"
#include "server/constraint/regex_reader.h"
#include "server/constraint/text_walk.h"

namespace recurve {
namespace {

// Every engine has \n as a line break, and ECMA-262 all of these.
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

// A piece of a regular expression, as the library is given it, how many characters it is about, and
// how many a text has that it takes.
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

// Of ? and counts the library makes automata that take more than is written, and it reads some
// classes otherwise than they are written, as [\^a]. So the walk reads a regular expression once,
// from its start to its end, and writes what means the same with characters, classes, groups, |, *
// and + alone, and each class by the characters that are in it.
class RegexWalk : RegexReader {
 public:
  using RegexReader::RegexReader;

  // `lengths`: of the texts that it takes; null: not wanted.
  std::string run(TextLengths* lengths) {
    if (text_.size() > kMostRegexBytes) {
      refuse(fmt::format("it must have at most {} bytes, got {}", kMostRegexBytes, text_.size()));
    }
    if (next_is('^')) ++at_;
    Piece all = read_alternatives(0);
    if (at_ < text_.size()) refuse("a ) closes nothing");
    if (lengths != nullptr) *lengths = all.lengths;
    return std::move(all.text);
  }

 private:
  Piece read_alternatives(int depth) {
    if (depth > kMostNesting) refuse(fmt::format("groups nest more than {} deep", kMostNesting));
    Piece all;
    std::optional<TextLengths> before;  // of the alternatives so far
    while (true) {
      const size_t from = all.text.size();
      all.lengths = {};
      while (!ended() && !next_is('|') && !next_is(')')) {
        all.add(read_repeated(depth));
        if (all.positions > kMostRegexPositions) {
          refuse(fmt::format("with its repeats written out it must have at most {} characters",
                             kMostRegexPositions));
        }
      }
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

  Piece read_repeated(int depth) {
    if (next_is('$')) {
      if (at_ + 1 != text_.size()) refuse("$ may only stand at the end");
      ++at_;
      return {};
    }
    const Piece one = read_one(depth);
    const auto [least, most] = read_repeat();
    if (next_is('?')) ++at_;  // as few as possible: the same texts
    if (next_is('*') || next_is('+') || next_is('{')) refuse("a repeat may not follow a repeat");
    Piece all = repeated(one, least, most);
    const auto& [fewest, longest] = one.lengths;
    all.lengths = {fewest * least,
                   longest && most ? std::optional(*longest * *most) : std::nullopt};
    return all;
  }

  Piece repeated(const Piece& one, int least, std::optional<int> most) {
    if (one.positions * std::max(least, most.value_or(1)) > kMostRegexPositions) {
      refuse(fmt::format("with its repeats written out it must have at most {} characters",
                         kMostRegexPositions));
    }
    Piece all;
    if (!most && least <= 1) return {one.text + (least == 0 ? "*" : "+"), one.positions};
    for (int i = 0; i < least; ++i) all.add(one);
    if (!most) all.add({one.text + "*", one.positions});
    // As many as kNest more stand in each other, so that no one nests too deep.
    constexpr int kNest = 16;
    for (int left = most.value_or(least) - least; left > 0; left -= kNest) {
      std::string close;
      for (int i = 0; i < std::min(left, kNest); ++i) {
        all.add({"(" + nothing() + "|" + one.text, one.positions});
        close += ')';
      }
      all.text += close;
    }
    return all;
  }

  Piece read_one(int depth) {
    const size_t from = at_;
    const char c = take();
    switch (c) {
      case '(':
        return read_group(depth);
      case '[':
        return one_of(read_class());
      case '.':
        return one_of(any_but_line_breaks());
      case '^':
        --at_;
        refuse("^ may only stand at the start");
      case '*':
      case '+':
      case '?':
      case '{':
        --at_;
        refuse(fmt::format("{} has nothing in front of it: write \\{} for the character", c, c));
      default:
        break;
    }
    at_ = from;
    const RegexUnit unit = read_unit();
    if (!unit.is_set) check_character(unit.character);
    return unit.is_set ? one_of(unit.set) : literal(unit);
  }

  // Where JSON says what may stand in a string, the library leaves out what may not.
  Piece one_of(const CharacterSet& set) const {
    if (in_json_ && set.within(plain_in_json()).empty()) {
      refuse("no printable character that JSON writes as itself is in this class");
    }
    if (set.empty()) refuse("no character is in this class");
    return {set.written(), 1, {1, 1}};
  }

  Piece literal(const RegexUnit& unit) const {
    if (!in_json_) return {'"' + escaped_for_ebnf(unit.bytes) + '"', 1, {1, 1}};
    return {escaped_in_regex(unit.bytes), 1, {1, 1}};
  }

  Piece read_group(int depth) {
    if (next_is('?')) {
      ++at_;
      if (take() != ':') refuse("of groups with ?, only (?:...) is known");
    }
    const Piece within = read_alternatives(depth + 1);
    if (take() != ')') refuse("a group is not closed");
    return {"(" + within.text + ")", within.positions, within.lengths};
  }

  // Where nothing may stand instead of something.
  std::string nothing() const { return in_json_ ? "" : "\"\""; }
};

}  // namespace

std::string ebnf_of_regex(std::string_view regex) { return RegexWalk(regex, false).run(nullptr); }

std::string json_pattern(std::string_view regex, TextLengths* lengths) {
  return RegexWalk(regex, true).run(lengths);
}

}  // namespace recurve

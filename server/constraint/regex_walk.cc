#include "server/constraint/regex_walk.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "server/constraint/character_set.h"
#include "server/constraint/regex_reader.h"
#include "server/constraint/text_walk.h"

namespace recurve {
namespace {

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

  // `lengths`: set to those of the texts that match, unless null.
  std::string run(TextLengths* lengths) {
    if (text_.size() > kMostRegexBytes) {
      refuse(fmt::format("it must have at most {} bytes, got {}", kMostRegexBytes, text_.size()));
    }
    if (next_is('^')) ++at_;
    Piece all = read_alternatives(0);
    if (at_ < text_.size()) refuse("unexpected )");
    if (lengths != nullptr) *lengths = all.lengths;
    return std::move(all.text);
  }

 private:
  Piece read_alternatives(int depth) {
    if (depth > kMostNesting)
      refuse(fmt::format("groups are nested more than {} levels deep", kMostNesting));
    Piece all;
    std::optional<TextLengths> before;  // of the alternatives so far
    while (true) {
      const size_t from = all.text.size();
      all.lengths = {};
      while (!ended() && !next_is('|') && !next_is(')')) {
        all.add(read_repeated(depth));
        if (all.positions > kMostRegexPositions) {
          refuse(fmt::format("with repeats expanded it must have at most {} characters",
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
      if (at_ + 1 != text_.size()) refuse("$ is only supported at the end");
      ++at_;
      return {};
    }
    const Piece one = read_one(depth);
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
    if (!unit.is_set) check_character(unit.character);
    return unit.is_set ? one_of(unit.set) : literal(unit);
  }

  // In JSON, the library removes characters that a string cannot contain.
  Piece one_of(const CharacterSet& set) const {
    if (in_json_ && set.within(plain_in_json()).empty()) {
      refuse("this class has no printable character that JSON does not escape");
    }
    if (set.empty()) refuse("this class has no characters");
    return {set.to_class(), 1, {1, 1}};
  }

  Piece literal(const RegexUnit& unit) const {
    if (!in_json_) return {'"' + escaped_for_ebnf(unit.bytes) + '"', 1, {1, 1}};
    return {escaped_in_regex(unit.bytes), 1, {1, 1}};
  }

  Piece read_group(int depth) {
    if (next_is('?')) {
      ++at_;
      if (take() != ':') refuse("of the groups with ?, only (?:...) is supported");
    }
    const Piece within = read_alternatives(depth + 1);
    if (take() != ')') refuse("a group is not closed");
    return {"(" + within.text + ")", within.positions, within.lengths};
  }

  // The empty text as an alternative.
  std::string nothing() const { return in_json_ ? "" : "\"\""; }
};

}  // namespace

std::string ebnf_of_regex(std::string_view regex) { return RegexWalk(regex, false).run(nullptr); }

std::string json_pattern(std::string_view regex, TextLengths* lengths) {
  return RegexWalk(regex, true).run(lengths);
}

}  // namespace recurve

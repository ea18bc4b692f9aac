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
#include "server/constraint/regex_reader.h"
#include "server/constraint/text_walk.h"
#include "server/constraint/utf8_masks.h"

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
    if (rewritten_ && !unit.is_set && unit.character == '\\') return one_of(read_json_escape());
    return unit.is_set ? one_of(unit.set) : literal(unit);
  }

  Piece one_of(const CharacterSet& set) const {
    if (rewritten_) return within_parameter(set);
    if (!in_json_) {
      if (set.empty()) refuse("this class has no characters");
      return {set.to_class(), 1, {1, 1}};
    }
    const CharacterSet plain = set.within(plain_in_json()), escapes = json_escapes_of(set);
    if (plain.empty() && escapes.empty()) {
      refuse("this class has no character that JSON writes as itself or with a short escape");
    }
    if (escapes.empty()) return {plain.to_class(), 1, {1, 1}};
    return {fmt::format("({}{}\\\\{})", plain.empty() ? "" : plain.to_class(),
                        plain.empty() ? "" : "|", escapes.to_class()),
            1,
            {1, 1}};
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

#include "server/constraint/text_walk.h"

#include <fmt/format.h>

#include <algorithm>
#include <bitset>
#include <cctype>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>

#include "server/constraint/constraint.h"

namespace recurve {
namespace {

constexpr int kMostNesting = 64;

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

// Reads a regular expression once, from its start to its end, and writes what means the same with
// characters, classes, groups, |, * and + alone: of ? and counts the library makes automata that
// take more than is written.
class RegexWalk {
 public:
  RegexWalk(std::string_view text, bool in_json) : text_(text), in_json_(in_json) {}

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
  [[noreturn]] void refuse(const std::string& why) const {
    throw ConstraintRefused(
        fmt::format("regular expression, at byte {}: {}", std::min(at_, text_.size()), why));
  }
  bool ended() const { return at_ == text_.size(); }
  bool next_is(char c) const { return !ended() && text_[at_] == c; }
  char take() {
    if (ended()) refuse("it ends too early");
    return text_[at_++];
  }

  Piece read_alternatives(int depth) {
    if (depth > kMostNesting) refuse(fmt::format("groups nest more than {} deep", kMostNesting));
    Piece all;
    std::optional<TextLengths> before;  // of the alternatives so far
    while (true) {
      all.lengths = {};
      while (!ended() && !next_is('|') && !next_is(')')) {
        all.add(read_repeated(depth));
        if (all.positions > kMostRegexPositions) {
          refuse(fmt::format("with its repeats written out it must have at most {} characters",
                             kMostRegexPositions));
        }
      }
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
        all.add({"(|" + one.text, one.positions});
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
        read_class();
        if (in_json_) return {in_ascii(text_.substr(from, at_ - from)), 1, {1, 1}};
        break;
      case '\\':
        read_escape();
        break;
      case '^':
        --at_;
        refuse("^ may only stand at the start");
      case '*':
      case '+':
      case '?':
      case '{':
        --at_;
        refuse(fmt::format("{} has nothing in front of it: write \\{} for the character", c, c));
      case '.':
        break;
      default:
        check_character(static_cast<unsigned char>(c));
        // All bytes of a character, for a repeat is of all of it.
        while (!ended() && (static_cast<unsigned char>(text_[at_]) & 0xc0) == 0x80) ++at_;
    }
    return {std::string(text_.substr(from, at_ - from)), 1, {1, 1}};
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

  // How often what stands in front may come; the second is empty: as often as it likes.
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
    if (take() != '}') refuse("a { that repeats must read {m}, {m,} or {m,n}");
    if (most && *most < least) refuse("{m,n} must not have m above n");
    return {least, most};
  }
  int read_number() {
    int value = 0;
    const size_t from = at_;
    while (!ended() && std::isdigit(static_cast<unsigned char>(text_[at_])) != 0) {
      value = value * 10 + (text_[at_++] - '0');
      if (value > kMostRegexRepeats) {
        refuse(fmt::format("a repeat may be of at most {} times", kMostRegexRepeats));
      }
    }
    if (at_ == from) refuse("a { that repeats must read {m}, {m,} or {m,n}");
    return value;
  }

  void read_class() {
    if (next_is('^')) ++at_;
    if (next_is(']')) refuse("a class may not be empty; write \\] for the character");
    while (!next_is(']')) {
      const char c = take();
      if (c == '[') refuse("write \\[ for the character in a class");
      if (c == '\\') {
        read_escape();
      } else {
        check_character(static_cast<unsigned char>(c), /*in_class=*/true);
      }
    }
    ++at_;
  }

  // A class that leaves out what \d, \w or \s are: other validators have more characters for these
  // than ASCII has, so it is written as the printable ones of ASCII that are left.
  std::string in_ascii(std::string_view written) const {
    const std::string_view inside = written.substr(1, written.size() - 2);
    const bool leaves_out_sets =
        inside.starts_with('^') && (inside.find("\\d") != std::string_view::npos ||
                                    inside.find("\\w") != std::string_view::npos ||
                                    inside.find("\\s") != std::string_view::npos);
    if (!leaves_out_sets) return std::string(written);
    const std::bitset<128> out = ascii_of_class(inside.substr(1));
    std::string left = "[";
    for (unsigned char c = 0x20; c <= 0x7e; ++c) {
      if (out[c] || c == '"' || c == '\\') continue;
      if (std::string_view("^$.*+?()[]{}|/-").find(static_cast<char>(c)) !=
          std::string_view::npos) {
        left += '\\';
      }
      left += static_cast<char>(c);
    }
    if (left.size() == 1) refuse("no printable character of ASCII is in this class");
    return left + "]";
  }

  // The characters that a class has between its brackets, which has been read before.
  std::bitset<128> ascii_of_class(std::string_view inside) const {
    std::bitset<128> set;
    const auto add_set = [&](char name) {
      for (unsigned char c = 0; c < 128; ++c) {
        const bool is_space = c == ' ' || (c >= '\t' && c <= '\r');
        set[c] = set[c] || (name == 'd'   ? std::isdigit(c) != 0
                            : name == 'w' ? std::isalnum(c) != 0 || c == '_'
                                          : is_space);
      }
    };
    for (size_t i = 0; i < inside.size(); ++i) {
      unsigned char first = static_cast<unsigned char>(inside[i]);
      if (first == '\\') {
        first = static_cast<unsigned char>(inside[++i]);
        if (first == 'd' || first == 'w' || first == 's') {
          add_set(static_cast<char>(first));
          continue;
        }
      }
      unsigned char last = first;
      if (i + 2 < inside.size() && inside[i + 1] == '-') {
        i += 2;
        if (inside[i] == '\\') ++i;
        last = static_cast<unsigned char>(inside[i]);
      }
      for (unsigned char c = first; c <= last && c < 128; ++c) set[c] = true;
    }
    return set;
  }

  void read_escape() {
    const char c = take();
    if (in_json_ && std::string_view("DWS").find(c) != std::string_view::npos) {
      refuse(fmt::format("\\{} is of other characters elsewhere: write a class, [!-~]", c));
    }
    if (std::string_view("dDwWsS").find(c) != std::string_view::npos) return;
    if (std::string_view("tnrfv").find(c) != std::string_view::npos) {
      if (in_json_) refuse(fmt::format("\\{} is written otherwise in JSON", c));
      return;
    }
    if (std::string_view("^$.*+?\\()[]{}|/-").find(c) != std::string_view::npos) {
      if (c == '\\' && in_json_) refuse("a \\ is written otherwise in JSON");
      return;
    }
    --at_;
    refuse(
        fmt::format("\\{} is not known: of escapes there are \\d \\w \\s \\D \\W \\S \\t \\n \\r "
                    "\\f \\v and those of ^ $ . * + ? \\ ( ) [ ] {{ }} | / -",
                    std::isprint(static_cast<unsigned char>(c)) != 0 ? c : '?'));
  }

  // In JSON, the library tells what may stand in a string apart for ASCII alone.
  void check_character(unsigned char c, bool in_class = false) {
    if (!in_json_) return;
    if (c < 0x20 || c > 0x7e) refuse("in a schema it must be of printable ASCII characters");
    if (c == '"' && !in_class) refuse("a \" is written otherwise in JSON");
  }

  const std::string_view text_;
  const bool in_json_;
  size_t at_ = 0;
};

}  // namespace

std::string enforceable_regex(std::string_view regex, bool in_json, TextLengths* lengths) {
  return RegexWalk(regex, in_json).run(lengths);
}

bool nests_deeper_than(std::string_view json, int levels) {
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < json.size(); ++i) {
    const char c = json[i];
    if (in_string) {
      i += c == '\\';
      in_string = c != '"';
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      if (++depth > levels) return true;
    } else if (c == '}' || c == ']') {
      --depth;
    }
  }
  return false;
}

void check_grammar(std::string_view grammar) {
  if (grammar.empty()) throw ConstraintRefused("grammar: it must have a rule named root");
  if (grammar.size() > kMostConstraintBytes) {
    throw ConstraintRefused(fmt::format("grammar: it must have at most {} bytes, got {}",
                                        kMostConstraintBytes, grammar.size()));
  }
  int depth = 0;
  for (size_t i = 0; i < grammar.size(); ++i) {
    const char c = grammar[i];
    if (c == '\0') throw ConstraintRefused("grammar: it may not have null characters");
    if (c == '(') ++depth;
    if (c == ')') --depth;
    if (depth > kMostNesting) {
      throw ConstraintRefused(
          fmt::format("grammar: brackets nest more than {} deep", kMostNesting));
    }
    // Counts of repeats are written out.
    int64_t count = 0;
    for (size_t d = i + 1; c == '{' && d < grammar.size(); ++d) {
      const char digit = grammar[d];
      if (digit == ',') {
        count = 0;
      } else if (std::isdigit(static_cast<unsigned char>(digit)) != 0) {
        count = count * 10 + (digit - '0');
      } else {
        break;
      }
      if (count > kMostRegexRepeats) {
        throw ConstraintRefused(
            fmt::format("grammar: a repeat may be of at most {} times", kMostRegexRepeats));
      }
    }
  }
}

std::vector<std::string> read_choices(std::string_view json) {
  const auto parsed = nlohmann::json::parse(json, nullptr, /*allow_exceptions=*/false);
  if (!parsed.is_array() || parsed.empty() || parsed.size() > kMostChoices ||
      json.size() > kMostConstraintBytes) {
    throw ConstraintRefused(fmt::format("choice: it must have 1 to {} texts, of at most {} bytes",
                                        kMostChoices, kMostConstraintBytes));
  }
  std::vector<std::string> choices;
  std::set<std::string> seen;
  for (const auto& one : parsed) {
    if (!one.is_string() || one.get_ref<const std::string&>().empty()) {
      throw ConstraintRefused("choice: each must be a text that is not empty");
    }
    const auto& text = one.get_ref<const std::string&>();
    if (seen.insert(text).second) choices.push_back(text);
  }
  return choices;
}

std::string escaped_for_ebnf(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      escaped += '\\';
      escaped += c;
    } else if (byte < 0x20 || byte == 0x7f) {
      escaped += fmt::format("\\x{:02x}", byte);
    } else {
      escaped += c;
    }
  }
  return escaped;
}

}  // namespace recurve

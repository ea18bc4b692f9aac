#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <optional>

#include "server/text/json/json_fields.h"
#include "server/text/pre_tokenizers/regex.h"
#include "server/text/utf8.h"

namespace recurve {
namespace {

// Inside [...]: Unicode's White_Space, its complement, and UTS #18 \w.
constexpr std::string_view kSpace =
    R"(\x{9}-\x{D}\x{20}\x{85}\x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029})"
    R"(\x{202F}\x{205F}\x{3000})";
constexpr std::string_view kNotSpace =
    R"(\x{0}-\x{8}\x{E}-\x{1F}\x{21}-\x{84}\x{86}-\x{9F}\x{A1}-\x{167F}\x{1681}-\x{1FFF})"
    R"(\x{200B}-\x{2027}\x{202A}-\x{202E}\x{2030}-\x{205E}\x{2060}-\x{2FFF}\x{3001}-\x{10FFFF})";
constexpr std::string_view kWord = R"(\p{Alphabetic}\p{M}\p{Nd}\p{Pc})";

constexpr std::array<std::string_view, 7> kGroups = {"(?:",  "(?i:", "(?=", "(?!",
                                                     "(?<=", "(?<!", "(?>"};

bool is_ascii_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
bool is_hex(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

class Translator {
 public:
  Translator(std::string_view pattern, bool interruptible)
      : in_(pattern), interruptible_(interruptible) {}

  std::string run() {
    while (at_ < in_.size()) {
      switch (in_[at_]) {
        case '\\':
          begin_character();
          if (next_is("\\A") || next_is("\\z")) character_.reset();
          escape(/*in_class=*/false);
          break;
        case '[':
          begin_character();
          character_class();
          break;
        case '(':
          character_.reset();
          group();
          break;
        case '{':
          character_.reset();
          interval();
          break;
        case '*':
        case '+':
          repeat();
          break;
        case ')':
        case '|':
        case '^':
        case '$':
        case '?':
          character_.reset();
          copy(1);
          break;
        default:
          begin_character();
          copy(1);
      }
    }
    return std::move(out_);
  }

 private:
  [[noreturn]] void refuse(std::string_view what) const {
    throw UnsupportedTokenizer(
        fmt::format("the regular expression {} uses {}, which is not supported", quote(in_), what));
  }

  bool next_is(std::string_view s) const { return in_.substr(at_).starts_with(s); }
  void copy(size_t n) {
    out_.append(in_.substr(at_, n));
    at_ += n;
  }

  // The next element is one character, or the continuation byte of one.
  void begin_character() {
    if (!character_ || !is_continuation(in_[at_])) character_ = out_.size();
  }

  // Writes X* as (?:X{n}(?C))*(?C)X{0,n-1}, which tries the same lengths in the same order: whole
  // blocks and then a part of one, and fewer blocks after backtracking.
  void repeat() {
    const bool at_least_one = in_[at_] == '+';
    const bool lazy = in_.substr(at_ + 1).starts_with('?');
    if (!interruptible_ || !character_ || lazy) {
      character_.reset();
      return copy(1);
    }
    constexpr int kBlock = 32768;  // characters; the maximum of PCRE2 is 65535
    const std::string one = out_.substr(*character_);
    const std::string many =
        fmt::format("(?:{0}{{{1}}}(?C))*(?C){0}{{0,{2}}}", one, kBlock, kBlock - 1);
    const bool possessive = in_.substr(at_ + 1).starts_with('+');
    out_.resize(*character_);
    out_ += fmt::format("(?{}{}{})", possessive ? '>' : ':', at_least_one ? one : "", many);
    at_ += possessive ? 2 : 1;
    character_.reset();
  }

  void group() {
    if (!next_is("(?")) {
      if (next_is("(*")) refuse("(*");
      return copy(1);
    }
    for (const std::string_view open : kGroups) {
      if (next_is(open)) return copy(open.size());
    }
    refuse(quote(in_.substr(at_, 4)));
  }

  // {n}, {n,} and {n,m}. Any other brace is a literal in both engines.
  void interval() {
    size_t end = at_ + 1;
    while (end < in_.size() && (in_[end] == ',' || (in_[end] >= '0' && in_[end] <= '9'))) ++end;
    if (end < in_.size() && in_[end] == '}' && end > at_ + 1) {
      if (in_[at_ + 1] == ',') refuse("{,n}");
      if (end + 1 < in_.size() && in_[end + 1] == '+') refuse("{n,m}+");
      return copy(end + 1 - at_);
    }
    copy(1);
  }

  void character_class() {
    copy(1);
    if (next_is("^")) copy(1);
    const size_t first = at_;
    bool set_before = false;  // the last element was a set like \s, which cannot begin a range
    while (at_ < in_.size() && in_[at_] != ']') {
      if (in_[at_] == '[') refuse("a character class inside another");
      if (next_is("&&")) refuse("an intersection of character classes");
      const bool ends_range = at_ > first + 1 && in_[at_ - 1] == '-' && !after_escaped_;
      after_escaped_ = false;
      if (in_[at_] == '\\') {
        set_before = escape(/*in_class=*/true);
        if (set_before && ends_range) refuse("a range that ends in a character set");
        after_escaped_ = true;
      } else if (in_[at_] == '-' && set_before) {
        if (!next_is("-]")) refuse("a range that begins with a character set");
        out_ += R"(\-)";
        ++at_;
        set_before = false;
        after_escaped_ = true;
      } else {
        copy(1);
        set_before = false;
      }
    }
    if (at_ == first) refuse("an empty character class");
    if (at_ == in_.size()) refuse("a character class without an end");
    copy(1);
    after_escaped_ = false;
  }

  // Returns whether the escape stands for a set of characters.
  bool escape(bool in_class) {
    if (at_ + 1 == in_.size()) refuse("a backslash at its end");
    const char c = in_[at_ + 1];
    switch (c) {
      case 's':
        return set(kSpace, in_class, false);
      case 'S':
        return in_class ? set(kNotSpace, true, false) : set(kSpace, false, true);
      case 'w':
        return set(kWord, in_class, false);
      case 'W':
        if (in_class) refuse("\\W inside a character class");
        return set(kWord, false, true);
      case 'd':
      case 'D':
        copy(2);
        return true;
      case 'p':
      case 'P':
        property();
        return true;
      case 'u':
      case 'x':
        code_point();
        return false;
      case 'n':
      case 'r':
      case 't':
      case 'f':
        copy(2);
        return false;
      case 'A':
      case 'z':
        if (!in_class) {
          copy(2);
          return false;
        }
        break;
      default:
        if (!is_ascii_letter(c) && !(c >= '0' && c <= '9')) {
          copy(2);  // a literal character, or the first byte of one
          return false;
        }
    }
    refuse(quote(in_.substr(at_, 2)));
  }

  bool set(std::string_view members, bool in_class, bool negate) {
    at_ += 2;
    out_ += in_class ? std::string(members) : fmt::format("[{}{}]", negate ? "^" : "", members);
    return true;
  }

  // A general category is the same in both engines. Any other name is a script.
  void property() {
    const size_t close = in_.find('}', at_);
    if (at_ + 2 >= in_.size() || in_[at_ + 2] != '{' || close == in_.npos) refuse("\\p without {");
    std::string_view name = in_.substr(at_ + 3, close - at_ - 3);
    const bool negate = name.starts_with('^');
    if (negate) name.remove_prefix(1);
    if (name.empty() || !std::all_of(name.begin(), name.end(),
                                     [](char c) { return is_ascii_letter(c) || c == '_'; })) {
      refuse("\\p{} with this name");
    }
    out_ += fmt::format("\\{}{{{}{}{}}}", in_[at_ + 1], negate ? "^" : "",
                        name.size() <= 2 ? "" : "sc:", name);
    at_ = close + 1;
  }

  // \uHHHH, \xHH below 80 (from 80 on it is a byte in Oniguruma) and \x{H...}.
  void code_point() {
    const bool braces = in_[at_ + 1] == 'x' && at_ + 2 < in_.size() && in_[at_ + 2] == '{';
    const size_t begin = at_ + (braces ? 3 : 2);
    const size_t most = braces ? 8 : in_[at_ + 1] == 'u' ? 4 : 2;
    size_t end = begin;
    while (end < in_.size() && end - begin < most && is_hex(in_[end])) ++end;
    const std::string_view digits = in_.substr(begin, end - begin);
    const bool closed = !braces || (end < in_.size() && in_[end] == '}');
    if (digits.empty() || !closed || (!braces && digits.size() != most) ||
        (most == 2 && digits[0] > '7')) {
      refuse("this form of \\x or \\u");
    }
    out_ += fmt::format("\\x{{{}}}", digits);
    at_ = end + (braces ? 1 : 0);
  }

  std::string_view in_;
  const bool interruptible_;
  size_t at_ = 0;
  std::string out_;
  std::optional<size_t>
      character_;               // where in out_ the last element begins, if it is one character
  bool after_escaped_ = false;  // in a class: the last character had a backslash
};

}  // namespace

std::string oniguruma_to_pcre2(std::string_view pattern) {
  return Translator(pattern, /*interruptible=*/false).run();
}

std::string oniguruma_to_interruptible_pcre2(std::string_view pattern) {
  return Translator(pattern, /*interruptible=*/true).run();
}

}  // namespace recurve

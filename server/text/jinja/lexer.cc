#include "server/text/jinja/lexer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "server/text/characters.h"
#include "server/text/jinja/text.h"

namespace recurve::jinja {
namespace {

using Kind = Token::Kind;

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_name_start(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool is_ascii_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

// Replaces \r\n and \r by \n, and removes a line break at the end of the template.
std::string normalised(std::string_view source) {
  std::string out;
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') {
      out += source[i];
      continue;
    }
    out += '\n';
    if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
  }
  if (out.ends_with('\n')) out.pop_back();
  return out;
}

std::string without_space_at_end(std::string_view text) {
  return strip(Text(text, Origin::kTemplate), Side::kRight).bytes;
}

size_t next_tag(std::string_view source, size_t at) {
  for (;; ++at) {
    at = source.find('{', at);
    if (at == source.npos || at + 1 == source.size()) return source.npos;
    const char c = source[at + 1];
    if (c == '{' || c == '%' || c == '#') return at;
  }
}

// The value of the first `count` hexadecimal digits; -1 if they are not that many digits.
int64_t read_hex(std::string_view digits, size_t count) {
  if (digits.size() < count) return -1;
  int64_t value = 0;
  for (const char c : digits.substr(0, count)) {
    const char lower = static_cast<char>(c | 0x20);
    if (!is_digit(c) && (lower < 'a' || lower > 'f')) return -1;
    value = value * 16 + (is_digit(c) ? c - '0' : lower - 'a' + 10);
  }
  return value;
}

// Appends the value of one of Python's escapes, of which `text` is the part after the backslash.
// Returns its size, 0 if it is not supported, npos if it is not an escape.
size_t unescape(std::string_view text, std::string* out) {
  constexpr std::string_view kNames = "\\'\"abfnrtv";
  constexpr std::string_view kValues = "\\'\"\a\b\f\n\r\t\v";
  const char c = text[0];
  if (const size_t at = kNames.find(c); at != kNames.npos) {
    *out += kValues[at];
    return 1;
  }
  if (c == '\n') return 1;
  if (c == 'x' || c == 'u' || c == 'U') {
    const size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : 8;
    const int64_t code = read_hex(text.substr(1), digits);
    if (code < 0 || code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) return 0;
    append_utf8(static_cast<char32_t>(code), *out);
    return 1 + digits;
  }
  if (is_digit(c) || c == 'N') return 0;
  *out += '\\';
  return std::string_view::npos;
}

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(normalised(source)) {}

  std::vector<Token> run() {
    while (at_ < source_.size()) read_text();
    add(Kind::kEnd, "");
    return std::move(tokens_);
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw Error(fmt::format("line {}: {}", line_, what));
  }
  std::string_view rest() const { return std::string_view(source_).substr(at_); }
  char peek(size_t ahead = 0) const {
    return at_ + ahead < source_.size() ? source_[at_ + ahead] : '\0';
  }
  void add(Kind kind, std::string value) { tokens_.push_back({kind, std::move(value), line_}); }
  void advance(size_t bytes) {
    const auto from = source_.begin() + static_cast<ptrdiff_t>(at_);
    line_ += static_cast<int>(std::count(from, from + static_cast<ptrdiff_t>(bytes), '\n'));
    at_ += bytes;
  }
  void skip_space() {
    size_t n = 0;
    for (const Character& c : Characters(rest())) {
      if (!is_space(c.code)) break;
      n = c.end;
    }
    advance(n);
  }

  // Reads text up to the next tag, and the tag.
  void read_text() {
    const size_t tag = next_tag(source_, at_);
    if (tag == source_.npos) {
      add_text(std::string(rest()));
      advance(source_.size() - at_);
      return;
    }
    const char type = source_[tag + 1];
    const char sign = tag + 2 < source_.size() ? source_[tag + 2] : '\0';
    const bool signed_ = sign == '-' || sign == '+';
    add_text(left_trimmed(rest().substr(0, tag - at_), sign, type == '{'));
    advance(tag - at_ + 2 + (signed_ ? 1 : 0));
    read_tag(type);
  }

  void read_tag(char type) {
    if (type == '#') return read_comment();
    if (type == '%' && read_raw()) return;
    const bool print = type == '{';
    add(print ? Kind::kPrintBegin : Kind::kBlockBegin, "");
    read_expression(print ? '}' : '%');
    add(print ? Kind::kPrintEnd : Kind::kBlockEnd, "");
    end_tag(!print);
  }

  void read_comment() {
    size_t end = rest().find("#}");
    if (end == std::string_view::npos) fail("a comment {# is not closed");
    if (end > 0 && (rest()[end - 1] == '-' || rest()[end - 1] == '+')) --end;
    advance(end);
    end_tag(true);
  }

  // Reads {% raw %} text {% endraw %} after the first "{%".
  bool read_raw() {
    const auto words = [](std::string_view text,
                          std::string_view word) {  // "  word  [-+]%}": bytes
      size_t n = 0;
      while (n < text.size() && is_ascii_space(text[n])) ++n;
      if (!text.substr(n).starts_with(word)) return size_t{0};
      n += word.size();
      while (n < text.size() && is_ascii_space(text[n])) ++n;
      const bool sign = n < text.size() && (text[n] == '-' || text[n] == '+');
      return text.substr(n + (sign ? 1 : 0)).starts_with("%}") ? n : size_t{0};
    };
    const size_t head = words(rest(), "raw");
    if (head == 0) return false;
    advance(head);
    if (peek() == '+') fail("{% raw +%} is not supported");
    end_tag(false);
    for (size_t tag = source_.find("{%", at_); tag != source_.npos;
         tag = source_.find("{%", tag + 2)) {
      const char sign = tag + 2 < source_.size() ? source_[tag + 2] : '\0';
      const size_t open = tag + (sign == '-' || sign == '+' ? 3 : 2);
      const size_t tail = words(std::string_view(source_).substr(open), "endraw");
      if (tail == 0) continue;
      add_text(left_trimmed(rest().substr(0, tag - at_), sign, false));
      advance(open + tail - at_);
      end_tag(true);
      return true;
    }
    fail("{% raw %} is not closed");
  }

  // Reads "-%}", "+%}" or "%}", or the same with "}" or "#".
  void end_tag(bool trims_line) {
    const char sign = peek();
    advance(sign == '-' || sign == '+' ? 3 : 2);
    if (sign == '-') {
      skip_space();
    } else if (sign != '+' && trims_line && peek() == '\n') {
      advance(1);
    }
    line_starts_ = source_[at_ - 1] == '\n';
  }

  // "{%-" removes all white space before it; "{%" that of its line if there is nothing else before
  // it.
  std::string left_trimmed(std::string_view text, char sign, bool is_print) const {
    if (sign == '-') return without_space_at_end(text);
    if (sign == '+' || is_print) return std::string(text);
    const size_t line_break = text.rfind('\n');
    if (line_break == text.npos && !line_starts_) return std::string(text);
    const size_t line = line_break == text.npos ? 0 : line_break + 1;
    const bool blank = without_space_at_end(text.substr(line)).empty();
    return std::string(blank ? text.substr(0, line) : text);
  }

  // Reads up to "%}" or "}}" outside of brackets; `closing` is its first character.
  void read_expression(char closing) {
    open_.clear();
    for (;;) {
      skip_space();
      if (at_ >= source_.size()) fail("a tag is not closed");
      const size_t sign = peek() == '-' || (peek() == '+' && closing == '%') ? 1 : 0;
      if (open_.empty() && peek(sign) == closing && peek(sign + 1) == '}') return;
      read_token();
    }
  }

  void read_token() {
    const char c = peek();
    if (is_digit(c)) return read_number();
    if (c == '"' || c == '\'') return read_string();
    if (!is_name_start(c)) return read_operator();
    size_t n = 1;
    while (is_name_start(peek(n)) || is_digit(peek(n))) ++n;
    add(Kind::kName, std::string(rest().substr(0, n)));
    advance(n);
  }

  void read_number() {
    size_t n = 0;
    const auto digits = [&] {
      while (is_digit(peek(n))) ++n;
    };
    digits();
    Kind kind = Kind::kInteger;
    if (peek(n) == '.' && is_digit(peek(n + 1))) {
      kind = Kind::kFloat;
      ++n;
      digits();
    }
    if (peek(n) == 'e' || peek(n) == 'E') {
      const size_t sign = peek(n + 1) == '+' || peek(n + 1) == '-' ? 1 : 0;
      if (is_digit(peek(n + 1 + sign))) {
        kind = Kind::kFloat;
        n += 1 + sign;
        digits();
      }
    }
    const std::string number(rest().substr(0, n));
    const bool padded = kind == Kind::kInteger && n > 1 && number[0] == '0';
    if (is_name_start(peek(n)) || padded) fail("this notation of a number is not supported");
    add(kind, number);
    advance(n);
  }

  void read_string() {
    const char quote = peek();
    std::string value;
    size_t n = 1;
    for (; peek(n) != quote; ++n) {
      if (at_ + n >= source_.size()) fail("a string is not closed");
      if (peek(n) != '\\') {
        value += peek(n);
        continue;
      }
      if (at_ + n + 1 >= source_.size()) fail("a string is not closed");
      const size_t taken = unescape(rest().substr(n + 1), &value);
      if (taken == 0)
        fail(fmt::format("the escape \\{} in a string is not supported", peek(n + 1)));
      if (taken != std::string_view::npos) n += taken;
    }
    add(Kind::kString, std::move(value));
    advance(n + 1);
  }

  void read_operator() {
    constexpr std::array<std::string_view, 26> kOperators = {
        "**", "//", "==", "!=", "<=", ">=", "+", "-", "*", "/", "%", "~", "<",
        ">",  "=",  "(",  ")",  "[",  "]",  "{", "}", ".", ",", ":", "|", ";"};
    for (const std::string_view op : kOperators) {
      if (!rest().starts_with(op)) continue;
      if (op == "(" || op == "[" || op == "{") open_ += op == "(" ? ')' : op == "[" ? ']' : '}';
      if (op == ")" || op == "]" || op == "}") {
        if (!open_.ends_with(op)) fail(fmt::format("unexpected {}", op));
        open_.pop_back();
      }
      add(Kind::kOperator, std::string(op));
      return advance(op.size());
    }
    fail(fmt::format("unexpected byte 0x{:02x}", static_cast<unsigned char>(peek())));
  }

  void add_text(std::string text) {
    if (!text.empty()) add(Kind::kText, std::move(text));
  }

  const std::string source_;
  size_t at_ = 0;
  int line_ = 1;
  bool line_starts_ = true;  // at the beginning of a line
  std::vector<Token> tokens_;
  std::string open_;  // closing brackets that the expression needs
};

}  // namespace

std::vector<Token> tokenise(std::string_view source) { return Lexer(source).run(); }

std::string TokenReader::describe() const {
  switch (now().kind) {
    case Kind::kEnd:
      return "the end of the template";
    case Kind::kText:
    case Kind::kPrintBegin:
    case Kind::kBlockBegin:
      return "the end of the tag";
    case Kind::kPrintEnd:
      return "}}";
    case Kind::kBlockEnd:
      return "%}";
    case Kind::kString:
      return "a string";
    default:
      return "'" + now().value + "'";
  }
}

}  // namespace recurve::jinja

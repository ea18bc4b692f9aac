#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "server/text/jinja/value.h"

namespace recurve::jinja {

struct Token {
  enum class Kind {
    kText,        // between tags, after trimming
    kPrintBegin,  // {{
    kPrintEnd,
    kBlockBegin,  // {%
    kBlockEnd,
    kName,
    kString,  // `value` is without quotes and escapes
    kInteger,
    kFloat,
    kOperator,
    kEnd,
  };
  Kind kind;
  std::string value;
  int line;

  bool is(Kind k, std::string_view v) const { return kind == k && value == v; }
};

// The tokens of a template, as in Jinja 3 with trim_blocks and lstrip_blocks. Comments are omitted.
// Throws Error.
std::vector<Token> tokenise(std::string_view source);

// The parser's position in the tokens of a template.
class TokenReader {
 public:
  using Kind = Token::Kind;

  explicit TokenReader(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  const Token& now() const { return tokens_[at_]; }
  const Token& next() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  int line() const { return now().line; }
  bool at(Kind kind) const { return now().kind == kind; }
  bool at_name(std::string_view name) const { return now().is(Kind::kName, name); }
  bool at_operator(std::string_view op) const { return now().is(Kind::kOperator, op); }

  Token take() {
    Token token = now();
    if (at_ + 1 < tokens_.size()) ++at_;
    return token;
  }
  bool skip_name(std::string_view name) { return skip(at_name(name)); }
  bool skip_operator(std::string_view op) { return skip(at_operator(op)); }
  void expect_name(std::string_view name) {
    if (!skip_name(name)) fail_expected(name);
  }
  void expect_operator(std::string_view op) {
    if (!skip_operator(op)) fail_expected(op);
  }
  void expect_block_end() {
    if (!skip(at(Kind::kBlockEnd))) fail_expected("%}");
  }
  void expect_print_end() {
    if (!skip(at(Kind::kPrintEnd))) fail_expected("}}");
  }
  std::string take_name() {
    if (!at(Kind::kName)) fail_expected("a name");
    return take().value;
  }

  template <typename... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) const {
    throw Error(
        fmt::format("line {}: {}", line(), fmt::format(format, std::forward<Args>(args)...)));
  }
  [[noreturn]] void fail_expected(std::string_view expected) const {
    fail("expected {}, found {}", expected, describe());
  }
  std::string describe() const;

 private:
  bool skip(bool found) {
    if (found) take();
    return found;
  }

  std::vector<Token> tokens_;  // the last is kEnd
  size_t at_ = 0;
};

}  // namespace recurve::jinja

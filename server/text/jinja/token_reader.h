#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "server/text/jinja/error.h"
#include "server/text/jinja/lexer.h"

namespace recurve::jinja {

// The parser's place in the tokens of a template.
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
  [[noreturn]] void fail_expected(std::string_view wanted) const {
    fail("{} was expected, found {}", wanted, describe());
  }
  std::string describe() const {
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

 private:
  bool skip(bool there) {
    if (there) take();
    return there;
  }

  std::vector<Token> tokens_;  // the last is kEnd
  size_t at_ = 0;
};

}  // namespace recurve::jinja

#pragma once

#include <set>
#include <string>

#include "server/text/jinja/ast.h"
#include "server/text/jinja/lexer.h"

namespace recurve::jinja {

// Parses expressions with the grammar of Jinja: one method per rule, from the lowest precedence to
// the highest.
class ExpressionParser {
 public:
  // `macros`: names that may be called in addition to the built-in functions.
  ExpressionParser(TokenReader& tokens, const std::set<std::string>& macros)
      : tokens_(tokens), macros_(macros) {}

  // An expression in which commas form a tuple. `conditional`: x if y else z is allowed.
  ExpressionPtr tuple(bool conditional = true);
  ExpressionPtr expression() { return conditional(); }
  // Any number of "| filter" after `input`, which may be null.
  ExpressionPtr filters(ExpressionPtr input);
  // "filter | filter" of a {% filter %}.
  ExpressionPtr block_filter();

 private:
  class Depth;

  ExpressionPtr conditional();
  ExpressionPtr disjunction();
  ExpressionPtr conjunction();
  ExpressionPtr negation();
  ExpressionPtr comparison();
  ExpressionPtr sum();
  ExpressionPtr concatenation();
  ExpressionPtr product();
  ExpressionPtr power();
  ExpressionPtr unary(bool with_filters);
  ExpressionPtr primary();
  ExpressionPtr name_or_constant();
  ExpressionPtr string();
  ExpressionPtr number();
  ExpressionPtr parenthesised();
  ExpressionPtr list();
  ExpressionPtr dict();
  ExpressionPtr postfix(ExpressionPtr object);
  ExpressionPtr attribute(ExpressionPtr object);
  ExpressionPtr subscript(ExpressionPtr object);
  ExpressionPtr filters_and_tests(ExpressionPtr input);
  ExpressionPtr filter(ExpressionPtr input);
  ExpressionPtr named_filter(ExpressionPtr input);
  ExpressionPtr test(ExpressionPtr input);
  ExpressionPtr call(ExpressionPtr callee);
  Arguments arguments();
  void check_call(const Call& call) const;
  bool begins_test_argument() const;

  using Operators = std::initializer_list<std::pair<std::string_view, Operator>>;
  ExpressionPtr chain(ExpressionPtr (ExpressionParser::*operand)(), const Operators& operators);
  template <typename Node>
  ExpressionPtr new_node(int line, Node node) const {
    return std::make_unique<const Expression>(Expression{line, std::move(node)});
  }
  void count_postfix(int* postfixes) const;

  TokenReader& tokens_;
  const std::set<std::string>& macros_;
  int depth_ = 0;
};

}  // namespace recurve::jinja

#pragma once

#include <set>
#include <string>

#include "server/text/jinja/ast.h"
#include "server/text/jinja/token_reader.h"

namespace recurve::jinja {

// Reads expressions, with the grammar of Jinja's own parser: one method for each of its rules, from
// those that bind least to those that bind most.
class ExpressionParser {
 public:
  // `macros`: names that may be called besides the built-in functions.
  ExpressionParser(TokenReader& tokens, const std::set<std::string>& macros)
      : tokens_(tokens), macros_(macros) {}

  // Where commas make a tuple. `conditional`: x if y else z is allowed.
  ExpressionPtr tuple(bool conditional = true);
  ExpressionPtr expression() { return conditional(); }
  // "| filter" behind `input`, which may be null; once or more often.
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
  ExpressionPtr make(int line, Node node) const {
    return std::make_unique<const Expression>(Expression{line, std::move(node)});
  }
  void count_postfix(int* postfixes) const;

  TokenReader& tokens_;
  const std::set<std::string>& macros_;
  int depth_ = 0;
};

}  // namespace recurve::jinja

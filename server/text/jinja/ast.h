#pragma once

#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "server/text/jinja/value.h"

namespace recurve::jinja {

struct Filter;  // callables.h
struct Predicate;
struct Expression;
struct Statement;
using ExpressionPtr = std::unique_ptr<const Expression>;
using Block = std::vector<Statement>;

// Expressions.

struct Literal {
  Value value;
};
struct Name {
  std::string name;
};
struct ListLiteral {
  std::vector<ExpressionPtr> items;
  bool tuple;
};
struct DictLiteral {
  std::vector<std::pair<ExpressionPtr, ExpressionPtr>> entries;
};
struct Attribute {
  ExpressionPtr object;
  std::string name;
};
struct Item {
  ExpressionPtr object, key;
};
struct Slice {
  ExpressionPtr object, begin, end, step;  // null: left out
};
enum class Operator {
  kAdd,
  kSubtract,
  kMultiply,
  kDivide,
  kFloorDivide,
  kModulo,
  kPower,
  kConcatenate,
  kEqual,
  kNotEqual,
  kLess,
  kLessEqual,
  kGreater,
  kGreaterEqual,
  kIn,
  kNotIn,
  kAnd,
  kOr,
  kNot,
  kNegate,
  kPlus,
};
struct Unary {
  Operator op;
  ExpressionPtr operand;
};
// Operators of one rank, from left to right: a - b + c. Flat, so that no chain makes a deep tree.
struct Chain {
  ExpressionPtr first;
  std::vector<std::pair<Operator, ExpressionPtr>> rest;
};
// a < b <= c: true where each pair is.
struct Comparison {
  ExpressionPtr first;
  std::vector<std::pair<Operator, ExpressionPtr>> rest;
};
struct Conditional {
  ExpressionPtr condition, yes, no;  // no may be null
};
struct Arguments {
  std::vector<ExpressionPtr> positional;
  std::vector<std::pair<std::string, ExpressionPtr>> named;
};
struct FilterCall {
  ExpressionPtr input;  // null: what the block of a {% set %} or {% filter %} wrote
  const Filter* filter;
  Arguments arguments;
};
struct PredicateCall {
  ExpressionPtr input;
  const Predicate* predicate;
  Arguments arguments;
  bool negated;
};
struct Call {
  ExpressionPtr callee;
  Arguments arguments;
};

struct Expression {
  int line;
  std::variant<Literal, Name, ListLiteral, DictLiteral, Attribute, Item, Slice, Unary, Chain,
               Comparison, Conditional, FilterCall, PredicateCall, Call>
      node;
};

// Statements.

// What a loop or {% set %} writes to: one name, several, or a member of a namespace.
struct Target {
  std::vector<std::string> names;
  bool unpacks = false;  // names in a tuple, even if it is only one
  std::string member;    // of the namespace names[0]; empty: none
};

struct TextOutput {
  std::string text;
};
struct Print {
  ExpressionPtr value;
};
struct If {
  std::vector<std::pair<ExpressionPtr, Block>> branches;
  Block otherwise;
};
struct For {
  Target target;
  ExpressionPtr items;
  ExpressionPtr condition;  // null: none
  Block body, otherwise;
};
struct Set {
  Target target;
  ExpressionPtr value;
};
// {% set x | filter %} ... {% endset %}
struct SetBlock {
  Target target;
  ExpressionPtr filter;  // its innermost FilterCall has no input; null: none
  Block body;
};
// {% filter name | name %} ... {% endfilter %}
struct FilterBlock {
  ExpressionPtr filter;  // as SetBlock has it, never null
  Block body;
};
struct Macro {
  std::string name;
  std::vector<std::pair<std::string, ExpressionPtr>> parameters;  // with defaults; null: none
  Block body;
};
struct Generation {  // {% generation %}: no more than a scope of its own
  Block body;
};
struct Break {};
struct Continue {};

struct Statement {
  int line;
  std::variant<TextOutput, Print, If, For, Set, SetBlock, FilterBlock, Macro, Generation, Break,
               Continue>
      node;
};

}  // namespace recurve::jinja

#pragma once

#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "server/text/jinja/value.h"

namespace recurve::jinja {

struct Filter;  // callables.h
struct Test;
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
  ExpressionPtr object, begin, end, step;  // null: missing
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
// Operators of equal precedence, from left to right: a - b + c. Flat, so that it is not a deep
// tree.
struct Chain {
  ExpressionPtr first;
  std::vector<std::pair<Operator, ExpressionPtr>> rest;
};
// a < b <= c: true if each pair is.
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
  ExpressionPtr input;  // null: the output of the block of {% set %} or {% filter %}
  const Filter* filter;
  Arguments arguments;
};
struct TestCall {
  ExpressionPtr input;
  const Test* test;
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
               Comparison, Conditional, FilterCall, TestCall, Call>
      node;
};

// Statements.

// The target of a loop or {% set %}: one name, several, or a member of a namespace.
struct Target {
  std::vector<std::string> names;
  bool unpacks = false;  // a tuple, maybe of one name
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
  ExpressionPtr filter;  // as in SetBlock, never null
  Block body;
};
struct Macro {
  std::string name;
  std::vector<std::pair<std::string, ExpressionPtr>> parameters;  // with defaults; null: none
  Block body;
};
struct Generation {  // {% generation %}: only a scope
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

// The statements of a template. Throws Error, with its line, for a tag, filter, test, function or
// method that is not supported, even where rendering would not reach it.
Block parse(std::string_view source);

}  // namespace recurve::jinja

#include "server/text/jinja/expression_parser.h"

#include <charconv>

namespace recurve::jinja {
namespace {

using Kind = Token::Kind;

constexpr int kMaxExpressionDepth = 32;  // of brackets, conditions and signs in each other

}  // namespace

// One level deeper while it lives.
class ExpressionParser::Depth {
 public:
  explicit Depth(ExpressionParser& parser) : parser_(parser) {
    if (++parser_.depth_ > kMaxExpressionDepth) {
      parser_.tokens_.fail("an expression is nested more than {} deep", kMaxExpressionDepth);
    }
  }
  ~Depth() { --parser_.depth_; }
  Depth(const Depth&) = delete;

 private:
  ExpressionParser& parser_;
};

ExpressionPtr ExpressionParser::tuple(bool is_conditional) {
  const int line = tokens_.line();
  ListLiteral tuple{.items = {}, .tuple = true};
  for (;;) {
    tuple.items.push_back(is_conditional ? conditional() : disjunction());
    if (!tokens_.skip_operator(",")) {
      if (tuple.items.size() == 1) return std::move(tuple.items[0]);
      break;
    }
    const bool ends =
        tokens_.at(Kind::kBlockEnd) || tokens_.at(Kind::kPrintEnd) || tokens_.at_operator(")");
    if (ends) break;
  }
  return make(line, std::move(tuple));
}

ExpressionPtr ExpressionParser::conditional() {
  const Depth depth(*this);
  const int line = tokens_.line();
  ExpressionPtr value = disjunction();
  if (!tokens_.skip_name("if")) return value;
  Conditional node{.condition = disjunction(), .yes = std::move(value), .no = nullptr};
  if (tokens_.skip_name("else")) node.no = conditional();
  if (tokens_.at_name("if")) tokens_.fail("'a if b if c' is not supported: use brackets");
  return make(line, std::move(node));
}

ExpressionPtr ExpressionParser::chain(ExpressionPtr (ExpressionParser::*operand)(),
                                      const Operators& operators) {
  const int line = tokens_.line();
  Chain node{.first = (this->*operand)(), .rest = {}};
  for (bool more = true; more;) {
    more = false;
    for (const auto& [spelling, op] : operators) {
      if (!tokens_.skip_operator(spelling) && !tokens_.skip_name(spelling)) continue;
      node.rest.emplace_back(op, (this->*operand)());
      more = true;
      break;
    }
  }
  return node.rest.empty() ? std::move(node.first) : make(line, std::move(node));
}

ExpressionPtr ExpressionParser::disjunction() {
  return chain(&ExpressionParser::conjunction, {{"or", Operator::kOr}});
}

ExpressionPtr ExpressionParser::conjunction() {
  return chain(&ExpressionParser::negation, {{"and", Operator::kAnd}});
}

ExpressionPtr ExpressionParser::negation() {
  const Depth depth(*this);
  const int line = tokens_.line();
  if (!tokens_.skip_name("not")) return comparison();
  return make(line, Unary{Operator::kNot, negation()});
}

ExpressionPtr ExpressionParser::comparison() {
  static constexpr std::pair<std::string_view, Operator> kOperators[] = {
      {"==", Operator::kEqual},     {"!=", Operator::kNotEqual}, {"<", Operator::kLess},
      {"<=", Operator::kLessEqual}, {">", Operator::kGreater},   {">=", Operator::kGreaterEqual}};
  const int line = tokens_.line();
  Comparison node{.first = sum(), .rest = {}};
  for (;;) {
    std::optional<Operator> found;
    for (const auto& [spelling, op] : kOperators) {
      if (!found && tokens_.skip_operator(spelling)) found = op;
    }
    if (!found && tokens_.skip_name("in")) found = Operator::kIn;
    if (!found && tokens_.at_name("not") && tokens_.next().is(Kind::kName, "in")) {
      tokens_.take();
      tokens_.take();
      found = Operator::kNotIn;
    }
    if (!found) break;
    node.rest.emplace_back(*found, sum());
  }
  return node.rest.empty() ? std::move(node.first) : make(line, std::move(node));
}

ExpressionPtr ExpressionParser::sum() {
  return chain(&ExpressionParser::concatenation,
               {{"+", Operator::kAdd}, {"-", Operator::kSubtract}});
}

ExpressionPtr ExpressionParser::concatenation() {
  return chain(&ExpressionParser::product, {{"~", Operator::kConcatenate}});
}

ExpressionPtr ExpressionParser::product() {
  return chain(&ExpressionParser::power, {{"*", Operator::kMultiply},
                                          {"/", Operator::kDivide},
                                          {"//", Operator::kFloorDivide},
                                          {"%", Operator::kModulo}});
}

ExpressionPtr ExpressionParser::power() {
  const int line = tokens_.line();
  Chain node{.first = unary(true), .rest = {}};
  while (tokens_.skip_operator("**")) node.rest.emplace_back(Operator::kPower, unary(true));
  return node.rest.empty() ? std::move(node.first) : make(line, std::move(node));
}

ExpressionPtr ExpressionParser::unary(bool with_filters) {
  const Depth depth(*this);
  const int line = tokens_.line();
  ExpressionPtr value;
  if (tokens_.skip_operator("-")) {
    value = make(line, Unary{Operator::kNegate, unary(false)});
  } else if (tokens_.skip_operator("+")) {
    value = make(line, Unary{Operator::kPlus, unary(false)});
  } else {
    value = primary();
  }
  value = postfix(std::move(value));
  return with_filters ? filters_and_tests(std::move(value)) : std::move(value);
}

ExpressionPtr ExpressionParser::primary() {
  if (tokens_.at(Kind::kName)) return name_or_constant();
  if (tokens_.at(Kind::kString)) return string();
  if (tokens_.at(Kind::kInteger) || tokens_.at(Kind::kFloat)) return number();
  if (tokens_.at_operator("(")) return parenthesised();
  if (tokens_.at_operator("[")) return list();
  if (tokens_.at_operator("{")) return dict();
  tokens_.fail_expected("an expression");
}

ExpressionPtr ExpressionParser::name_or_constant() {
  const int line = tokens_.line();
  const std::string name = tokens_.take().value;
  if (name == "true" || name == "True") return make(line, Literal{Value(true)});
  if (name == "false" || name == "False") return make(line, Literal{Value(false)});
  if (name == "none" || name == "None") return make(line, Literal{Value(None{})});
  for (const std::string_view global :
       {"lipsum", "cycler", "joiner", "caller", "varargs", "kwargs", "self", "super", "_"}) {
    if (name == global && tokens_.at_operator("(")) {
      tokens_.fail("the function '{}' is not supported", name);
    }
  }
  return make(line, Name{name});
}

// Strings in a row are one.
ExpressionPtr ExpressionParser::string() {
  const int line = tokens_.line();
  std::string value;
  while (tokens_.at(Kind::kString)) value += tokens_.take().value;
  return make(line, Literal{Value::text(value)});
}

ExpressionPtr ExpressionParser::number() {
  const int line = tokens_.line();
  const std::string& text = tokens_.now().value;
  const char* end = text.data() + text.size();
  Value value;
  std::errc problem{};
  if (tokens_.at(Kind::kInteger)) {
    int64_t integer = 0;
    problem = std::from_chars(text.data(), end, integer).ec;
    value = Value(integer);
  } else {
    double real = 0;
    problem = std::from_chars(text.data(), end, real).ec;
    value = Value(real);
  }
  if (problem != std::errc()) tokens_.fail("the number {} is too large", text);
  tokens_.take();
  return make(line, Literal{std::move(value)});
}

ExpressionPtr ExpressionParser::parenthesised() {
  const int line = tokens_.line();
  tokens_.expect_operator("(");
  if (tokens_.skip_operator(")")) return make(line, ListLiteral{.items = {}, .tuple = true});
  ExpressionPtr value = tuple();
  tokens_.expect_operator(")");
  return value;
}

ExpressionPtr ExpressionParser::list() {
  const int line = tokens_.line();
  tokens_.expect_operator("[");
  ListLiteral node{.items = {}, .tuple = false};
  while (!tokens_.at_operator("]")) {
    node.items.push_back(conditional());
    if (!tokens_.skip_operator(",")) break;
  }
  tokens_.expect_operator("]");
  return make(line, std::move(node));
}

ExpressionPtr ExpressionParser::dict() {
  const int line = tokens_.line();
  tokens_.expect_operator("{");
  DictLiteral node;
  while (!tokens_.at_operator("}")) {
    ExpressionPtr key = conditional();
    tokens_.expect_operator(":");
    node.entries.emplace_back(std::move(key), conditional());
    if (!tokens_.skip_operator(",")) break;
  }
  tokens_.expect_operator("}");
  return make(line, std::move(node));
}

}  // namespace recurve::jinja

#include "server/text/jinja/expression_parser.h"

#include <charconv>

#include "server/text/jinja/callables.h"

namespace recurve::jinja {
namespace {

using Kind = Token::Kind;

constexpr int kMaxExpressionDepth = 32;  // of nested brackets, conditions and signs

constexpr int kMaxPostfixes = 64;  // of calls, attributes and filters in a row

// Checks arguments against the parameters of a filter, test, method or function.
void check_arguments(const TokenReader& tokens, std::string_view what, std::string_view name,
                     std::string_view parameters, const Arguments& arguments) {
  if (!takes_positional(parameters, arguments.positional.size())) {
    tokens.fail("the {} '{}' is not supported with {} arguments", what, name,
                arguments.positional.size());
  }
  for (const auto& [parameter, value] : arguments.named) {
    if (takes_named(parameters, parameter)) continue;
    tokens.fail("the {} '{}' is not supported with the argument '{}'", what, name, parameter);
  }
}

}  // namespace

// One level of nesting.
class ExpressionParser::Depth {
 public:
  explicit Depth(ExpressionParser& parser) : parser_(parser) {
    if (++parser_.depth_ > kMaxExpressionDepth) {
      parser_.tokens_.fail("an expression is nested more than {} levels deep", kMaxExpressionDepth);
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
  return new_node(line, std::move(tuple));
}

ExpressionPtr ExpressionParser::conditional() {
  const Depth depth(*this);
  const int line = tokens_.line();
  ExpressionPtr value = disjunction();
  if (!tokens_.skip_name("if")) return value;
  Conditional node{.condition = disjunction(), .yes = std::move(value), .no = nullptr};
  if (tokens_.skip_name("else")) node.no = conditional();
  if (tokens_.at_name("if")) tokens_.fail("'a if b if c' is not supported: use brackets");
  return new_node(line, std::move(node));
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
  return node.rest.empty() ? std::move(node.first) : new_node(line, std::move(node));
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
  return new_node(line, Unary{Operator::kNot, negation()});
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
  return node.rest.empty() ? std::move(node.first) : new_node(line, std::move(node));
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
  return node.rest.empty() ? std::move(node.first) : new_node(line, std::move(node));
}

ExpressionPtr ExpressionParser::unary(bool with_filters) {
  const Depth depth(*this);
  const int line = tokens_.line();
  ExpressionPtr value;
  if (tokens_.skip_operator("-")) {
    value = new_node(line, Unary{Operator::kNegate, unary(false)});
  } else if (tokens_.skip_operator("+")) {
    value = new_node(line, Unary{Operator::kPlus, unary(false)});
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
  if (name == "true" || name == "True") return new_node(line, Literal{Value(true)});
  if (name == "false" || name == "False") return new_node(line, Literal{Value(false)});
  if (name == "none" || name == "None") return new_node(line, Literal{Value(None{})});
  for (const std::string_view global :
       {"lipsum", "cycler", "joiner", "caller", "varargs", "kwargs", "self", "super", "_"}) {
    if (name == global && tokens_.at_operator("(")) {
      tokens_.fail("the function '{}' is not supported", name);
    }
  }
  return new_node(line, Name{name});
}

// Adjacent strings are concatenated.
ExpressionPtr ExpressionParser::string() {
  const int line = tokens_.line();
  std::string value;
  while (tokens_.at(Kind::kString)) value += tokens_.take().value;
  return new_node(line, Literal{Value::text(value)});
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
  return new_node(line, Literal{std::move(value)});
}

ExpressionPtr ExpressionParser::parenthesised() {
  const int line = tokens_.line();
  tokens_.expect_operator("(");
  if (tokens_.skip_operator(")")) return new_node(line, ListLiteral{.items = {}, .tuple = true});
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
  return new_node(line, std::move(node));
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
  return new_node(line, std::move(node));
}

void ExpressionParser::count_postfix(int* postfixes) const {
  if (++*postfixes > kMaxPostfixes) {
    tokens_.fail("an expression has more than {} calls, attributes or filters in a row",
                 kMaxPostfixes);
  }
}

ExpressionPtr ExpressionParser::postfix(ExpressionPtr object) {
  for (int count = 0;; count_postfix(&count)) {
    if (tokens_.at_operator(".")) {
      object = attribute(std::move(object));
    } else if (tokens_.at_operator("[")) {
      object = subscript(std::move(object));
    } else if (tokens_.at_operator("(")) {
      object = call(std::move(object));
    } else {
      return object;
    }
  }
}

ExpressionPtr ExpressionParser::attribute(ExpressionPtr object) {
  const int line = tokens_.line();
  tokens_.expect_operator(".");
  if (tokens_.at(Kind::kInteger)) {
    return new_node(line, Item{std::move(object), number()});
  }
  return new_node(line, Attribute{std::move(object), tokens_.take_name()});
}

ExpressionPtr ExpressionParser::subscript(ExpressionPtr object) {
  const int line = tokens_.line();
  tokens_.expect_operator("[");
  ExpressionPtr parts[3];
  size_t part = 0;
  const auto ends = [&] { return tokens_.at_operator("]"); };
  for (;; ++part) {
    if (part > 2) tokens_.fail_expected("]");
    if (!ends() && !tokens_.at_operator(":")) parts[part] = conditional();
    if (!tokens_.skip_operator(":")) break;
  }
  tokens_.expect_operator("]");
  if (part > 0) {
    return new_node(line, Slice{std::move(object), std::move(parts[0]), std::move(parts[1]),
                                std::move(parts[2])});
  }
  if (parts[0] == nullptr) tokens_.fail("[] needs a key");
  return new_node(line, Item{std::move(object), std::move(parts[0])});
}

ExpressionPtr ExpressionParser::filters(ExpressionPtr input) {
  for (int count = 0; tokens_.at_operator("|"); count_postfix(&count)) {
    input = filter(std::move(input));
  }
  return input;
}

ExpressionPtr ExpressionParser::filters_and_tests(ExpressionPtr input) {
  for (int count = 0;; count_postfix(&count)) {
    if (tokens_.at_operator("|")) {
      input = filter(std::move(input));
    } else if (tokens_.at_name("is")) {
      input = test(std::move(input));
    } else if (tokens_.at_operator("(")) {
      input = call(std::move(input));
    } else {
      return input;
    }
  }
}

ExpressionPtr ExpressionParser::block_filter() { return filters(named_filter(nullptr)); }

ExpressionPtr ExpressionParser::filter(ExpressionPtr input) {
  tokens_.expect_operator("|");
  return named_filter(std::move(input));
}

ExpressionPtr ExpressionParser::named_filter(ExpressionPtr input) {
  const int line = tokens_.line();
  const std::string name = tokens_.take_name();
  const Filter* found = find_filter(name);
  if (found == nullptr) tokens_.fail("the filter '{}' is not supported", name);
  FilterCall node{.input = std::move(input), .filter = found, .arguments = {}};
  if (tokens_.at_operator("(")) node.arguments = arguments();
  check_arguments(tokens_, "filter", name, found->parameters, node.arguments);
  return new_node(line, std::move(node));
}

// Whether an argument without brackets follows: "x is divisibleby 3".
bool ExpressionParser::begins_test_argument() const {
  if (tokens_.at(Kind::kName)) {
    return !tokens_.at_name("else") && !tokens_.at_name("or") && !tokens_.at_name("and");
  }
  return tokens_.at(Kind::kString) || tokens_.at(Kind::kInteger) || tokens_.at(Kind::kFloat) ||
         tokens_.at_operator("[") || tokens_.at_operator("{");
}

ExpressionPtr ExpressionParser::test(ExpressionPtr input) {
  const int line = tokens_.line();
  tokens_.expect_name("is");
  const bool negated = tokens_.skip_name("not");
  const std::string name = tokens_.take_name();
  const Test* found = find_test(name);
  if (found == nullptr) tokens_.fail("the test '{}' is not supported", name);
  TestCall node{.input = std::move(input), .test = found, .arguments = {}, .negated = negated};
  if (tokens_.at_operator("(")) {
    node.arguments = arguments();
  } else if (begins_test_argument()) {
    if (tokens_.at_name("is")) tokens_.fail("tests cannot be chained with 'is'");
    node.arguments.positional.push_back(postfix(primary()));
  }
  check_arguments(tokens_, "test", name, found->parameters, node.arguments);
  return new_node(line, std::move(node));
}

ExpressionPtr ExpressionParser::call(ExpressionPtr callee) {
  const int line = tokens_.line();
  Call node{.callee = std::move(callee), .arguments = arguments()};
  check_call(node);
  return new_node(line, std::move(node));
}

// Only known names can be called, so that a template that is not supported is refused when it is
// loaded.
void ExpressionParser::check_call(const Call& call) const {
  if (const auto* name = std::get_if<Name>(&call.callee->node)) {
    if (macros_.contains(name->name)) return;
    const Function* function = find_function(name->name);
    if (function == nullptr) tokens_.fail("the function '{}' is not supported", name->name);
    return check_arguments(tokens_, "function", name->name, function->parameters, call.arguments);
  }
  const auto* attribute = std::get_if<Attribute>(&call.callee->node);
  if (attribute == nullptr) tokens_.fail("a call of something without a name is not supported");
  const MethodEntry* method = find_string_method(attribute->name);
  if (method == nullptr) method = find_dict_method(attribute->name);
  if (method == nullptr) tokens_.fail("the method '{}' is not supported", attribute->name);
  check_arguments(tokens_, "method", attribute->name, method->parameters, call.arguments);
}

Arguments ExpressionParser::arguments() {
  Arguments all;
  tokens_.expect_operator("(");
  while (!tokens_.at_operator(")")) {
    if (tokens_.at_operator("*") || tokens_.at_operator("**")) {
      tokens_.fail("arguments with {} are not supported", tokens_.now().value);
    }
    if (tokens_.at(Kind::kName) && tokens_.next().is(Kind::kOperator, "=")) {
      std::string name = tokens_.take().value;
      tokens_.take();
      all.named.emplace_back(std::move(name), conditional());
    } else {
      if (!all.named.empty()) tokens_.fail("an argument without a name follows one with a name");
      all.positional.push_back(conditional());
    }
    if (!tokens_.skip_operator(",")) break;
  }
  tokens_.expect_operator(")");
  return all;
}

}  // namespace recurve::jinja

// What stands behind a value: attributes, items, calls, filters and tests.
#include "server/text/jinja/callables.h"
#include "server/text/jinja/expression_parser.h"

namespace recurve::jinja {
namespace {

using Kind = Token::Kind;

constexpr int kMaxPostfixes = 64;  // of calls, attributes and filters in a row

// "trim(chars=x)" against what the filter, test, method or function takes.
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
    return make(line, Item{std::move(object), number()});
  }
  return make(line, Attribute{std::move(object), tokens_.take_name()});
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
    return make(line, Slice{std::move(object), std::move(parts[0]), std::move(parts[1]),
                            std::move(parts[2])});
  }
  if (parts[0] == nullptr) tokens_.fail("[] needs a key");
  return make(line, Item{std::move(object), std::move(parts[0])});
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
  return make(line, std::move(node));
}

// "x is divisibleby 3": an argument without brackets.
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
  const Predicate* found = find_predicate(name);
  if (found == nullptr) tokens_.fail("the test '{}' is not supported", name);
  PredicateCall node{
      .input = std::move(input), .predicate = found, .arguments = {}, .negated = negated};
  if (tokens_.at_operator("(")) {
    node.arguments = arguments();
  } else if (begins_test_argument()) {
    if (tokens_.at_name("is")) tokens_.fail("tests cannot be chained with 'is'");
    node.arguments.positional.push_back(postfix(primary()));
  }
  check_arguments(tokens_, "test", name, found->parameters, node.arguments);
  return make(line, std::move(node));
}

ExpressionPtr ExpressionParser::call(ExpressionPtr callee) {
  const int line = tokens_.line();
  Call node{.callee = std::move(callee), .arguments = arguments()};
  check_call(node);
  return make(line, std::move(node));
}

// Only what is known by its name can be called: so a template says at once what it needs.
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
      if (!all.named.empty()) tokens_.fail("an argument without a name stands behind one with");
      all.positional.push_back(conditional());
    }
    if (!tokens_.skip_operator(",")) break;
  }
  tokens_.expect_operator(")");
  return all;
}

}  // namespace recurve::jinja

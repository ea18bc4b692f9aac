#include <initializer_list>

#include "server/text/jinja/ast.h"
#include "server/text/jinja/expression_parser.h"

namespace recurve::jinja {
namespace {

using Kind = Token::Kind;

constexpr int kMaxTagDepth = 32;  // of nested tags

std::set<std::string> macro_names(const std::vector<Token>& tokens) {
  std::set<std::string> names;
  for (size_t i = 0; i + 2 < tokens.size(); ++i) {
    const bool macro =
        tokens[i].kind == Kind::kBlockBegin && tokens[i + 1].is(Kind::kName, "macro");
    if (macro && tokens[i + 2].kind == Kind::kName) names.insert(tokens[i + 2].value);
  }
  return names;
}

class Parser {
 public:
  explicit Parser(std::string_view source) : Parser(tokenise(source)) {}

  Block run() {
    Block all = block({});
    if (!tokens_.at(Kind::kEnd)) tokens_.fail("unexpected {{% {} %}}", tokens_.now().value);
    return all;
  }

 private:
  explicit Parser(std::vector<Token> tokens)
      : macros_(macro_names(tokens)), tokens_(std::move(tokens)), expressions_(tokens_, macros_) {}

  // Reads up to "{%" and one of the names in `ends`, which is the next token then.
  Block block(std::initializer_list<std::string_view> ends) {
    Block statements;
    while (!tokens_.at(Kind::kEnd)) {
      if (tokens_.at(Kind::kBlockBegin) && tokens_.next().kind == Kind::kName) {
        for (const std::string_view end : ends) {
          if (tokens_.next().value != end) continue;
          tokens_.take();
          return statements;
        }
      }
      statements.push_back(statement());
    }
    if (ends.size() > 0) tokens_.fail("{{% {} %}} is missing", *(ends.end() - 1));
    return statements;
  }

  // Reads the end of an opening tag, and its block.
  Block inner_block(std::initializer_list<std::string_view> ends) {
    tokens_.expect_block_end();
    if (++depth_ > kMaxTagDepth)
      tokens_.fail("tags are nested more than {} levels deep", kMaxTagDepth);
    Block statements = block(ends);
    --depth_;
    return statements;
  }

  // Reads a block from which {% break %} and {% continue %} cannot reach an enclosing loop.
  Block scoped_block(std::string_view end) {
    const int loops = std::exchange(loops_, 0);
    ++scopes_;
    Block body = inner_block({end});
    --scopes_;
    loops_ = loops;
    return body;
  }

  Statement statement() {
    const int line = tokens_.line();
    if (tokens_.at(Kind::kText)) return {line, TextOutput{tokens_.take().value}};
    if (tokens_.at(Kind::kPrintBegin)) {
      tokens_.take();
      Print print{expressions_.tuple()};
      tokens_.expect_print_end();
      return {line, std::move(print)};
    }
    tokens_.take();  // kBlockBegin: the only other token between tags
    return tag();
  }

  Statement tag() {
    const int line = tokens_.line();
    const std::string name = tokens_.take_name();
    if (name == "if") return {line, if_tag()};
    if (name == "for") return {line, for_tag()};
    if (name == "macro") return {line, macro_tag()};
    if (name == "set") {
      return std::visit([&](auto node) { return Statement{line, std::move(node)}; }, set_tag());
    }
    if (name == "filter") {
      FilterBlock node{.filter = expressions_.block_filter(), .body = scoped_block("endfilter")};
      end_tag("endfilter");
      return {line, std::move(node)};
    }
    if (name == "generation") {
      Generation node{scoped_block("endgeneration")};
      end_tag("endgeneration");
      return {line, std::move(node)};
    }
    if (name == "break" || name == "continue") {
      if (loops_ == 0) tokens_.fail("{{% {} %}} is outside of a loop", name);
      tokens_.expect_block_end();
      return name == "break" ? Statement{line, Break{}} : Statement{line, Continue{}};
    }
    if (name.starts_with("end") || name == "else" || name == "elif") {
      tokens_.fail("unexpected {{% {} %}}", name);
    }
    tokens_.fail("the tag {{% {} %}} is not supported", name);
  }

  If if_tag() {
    If node;
    for (;;) {
      ExpressionPtr condition = expressions_.tuple(false);
      Block body = inner_block({"elif", "else", "endif"});
      node.branches.emplace_back(std::move(condition), std::move(body));
      if (tokens_.skip_name("elif")) continue;
      if (tokens_.skip_name("else")) node.otherwise = inner_block({"endif"});
      end_tag("endif");
      return node;
    }
  }

  For for_tag() {
    For node{.target = target()};
    if (!node.target.member.empty())
      tokens_.fail("a loop over {}.{} is not supported", node.target.names[0], node.target.member);
    tokens_.expect_name("in");
    node.items = expressions_.tuple(false);
    if (tokens_.skip_name("if")) node.condition = expressions_.expression();
    if (tokens_.at_name("recursive")) tokens_.fail("recursive loops are not supported");
    ++scopes_;
    ++loops_;
    node.body = inner_block({"else", "endfor"});
    --loops_;
    if (tokens_.skip_name("else")) node.otherwise = inner_block({"endfor"});
    --scopes_;
    end_tag("endfor");
    return node;
  }

  std::variant<Set, SetBlock> set_tag() {
    Target to = target();
    if (tokens_.skip_operator("=")) {
      Set node{.target = std::move(to), .value = expressions_.tuple()};
      tokens_.expect_block_end();
      return node;
    }
    SetBlock node{.target = std::move(to), .filter = expressions_.filters(nullptr), .body = {}};
    node.body = scoped_block("endset");
    end_tag("endset");
    return node;
  }

  // Only outside of scopes, so that a macro needs no reference to the scope of its definition.
  Macro macro_tag() {
    if (scopes_ > 0) tokens_.fail("a macro inside of a loop or macro is not supported");
    Macro node{.name = tokens_.take_name()};
    tokens_.expect_operator("(");
    while (!tokens_.at_operator(")")) {
      std::string name = tokens_.take_name();
      ExpressionPtr if_missing = tokens_.skip_operator("=") ? expressions_.expression() : nullptr;
      if (if_missing == nullptr && !node.parameters.empty() && node.parameters.back().second) {
        tokens_.fail("the parameter '{}' without a default follows one with a default", name);
      }
      node.parameters.emplace_back(std::move(name), std::move(if_missing));
      if (!tokens_.skip_operator(",")) break;
    }
    tokens_.expect_operator(")");
    node.body = scoped_block("endmacro");
    end_tag("endmacro");
    return node;
  }

  Target target() {
    const bool brackets = tokens_.skip_operator("(");
    Target target{.names = {tokens_.take_name()}};
    if (!brackets && tokens_.skip_operator(".")) {
      target.member = tokens_.take_name();
      return target;
    }
    while (tokens_.skip_operator(",")) {
      target.unpacks = true;
      if (!tokens_.at(Kind::kName) || tokens_.at_name("in")) break;
      target.names.push_back(tokens_.take_name());
    }
    if (brackets) tokens_.expect_operator(")");
    for (const std::string& name : target.names) {
      for (const std::string_view constant : {"true", "false", "none", "True", "False", "None"}) {
        if (name == constant) tokens_.fail("{} cannot be set", name);
      }
      // A name that is known to be callable stays callable.
      if (macros_.contains(name)) tokens_.fail("the macro '{}' cannot be set", name);
    }
    return target;
  }

  void end_tag(std::string_view name) {
    tokens_.expect_name(name);
    tokens_.expect_block_end();
  }

  const std::set<std::string> macros_;  // all of the template, since one may call a later one
  TokenReader tokens_;
  ExpressionParser expressions_;
  int depth_ = 0;
  int scopes_ = 0;  // enclosing loops, macros and others
  int loops_ = 0;
};

}  // namespace

Block parse(std::string_view source) { return Parser(source).run(); }

}  // namespace recurve::jinja

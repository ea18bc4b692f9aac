#pragma once

#include <map>
#include <string_view>
#include <vector>

#include "server/text/jinja/ast.h"
#include "server/text/jinja/callables.h"
#include "server/text/jinja/run.h"
#include "server/text/jinja/template.h"

namespace recurve::jinja {

// The variables set in an iteration of a loop, a macro or the template. Lookups continue in the
// outer scope. Not hashed, as in Dict: no choice of names makes lookups slow.
class Scope {
 public:
  explicit Scope(const Scope* outer = nullptr) : outer_(outer) {}
  void set(std::string_view name, Value value);  // `name` must live as long as the scope
  const Value* find(std::string_view name) const;

 private:
  const Scope* const outer_;
  std::map<std::string_view, Value> variables_;
};

// Executes a template once.
class Evaluator {
 public:
  Evaluator(Run& run, const Template::Layers& variables) : run_(run), variables_(variables) {}

  Text render(const Block& block);

 private:
  enum class Flow { kOn, kBreak, kContinue };

  Flow execute(const Block& block);
  Flow execute(const Statement& statement);
  Flow execute_node(const TextOutput& text);
  Flow execute_node(const Print& print);
  Flow execute_node(const If& node);
  Flow execute_node(const For& node);
  Flow execute_node(const Set& set);
  Flow execute_node(const SetBlock& set);
  Flow execute_node(const FilterBlock& node);
  Flow execute_node(const Macro& macro);
  Flow execute_node(const Generation& generation);
  Flow execute_node(const Break&) { return Flow::kBreak; }
  Flow execute_node(const Continue&) { return Flow::kContinue; }

  std::vector<Value> loop_items(const For& node);
  void assign(const Target& target, Value value);
  void write(const Text& text);
  Text captured(const Block& block);  // its output, in a new scope
  Value filtered(const Expression& filter, Value block);

  Value evaluate(const Expression& expression);
  Value evaluate_node(const Literal& literal);
  Value evaluate_node(const Name& name);
  Value evaluate_node(const ListLiteral& list);
  Value evaluate_node(const DictLiteral& dict);
  Value evaluate_node(const Attribute& node);
  Value evaluate_node(const Item& node);
  Value evaluate_node(const Slice& node);
  Value evaluate_node(const Unary& node);
  Value evaluate_node(const Chain& chain);
  Value evaluate_node(const Comparison& comparison);
  Value evaluate_node(const Conditional& node);
  Value evaluate_node(const FilterCall& call);
  Value evaluate_node(const TestCall& call);
  Value evaluate_node(const Call& call);

  const Value* find(std::string_view name) const;  // a variable of a scope or of variables_
  Value call_method(const Attribute& callee, const Value& object, const CallValues& arguments);
  Value call_value(const Value& callee, const CallValues& arguments);
  Value call_macro(const Macro& macro, const CallValues& arguments);
  CallValues evaluate(const Arguments& arguments);

  Run& run_;
  const Template::Layers& variables_;  // outside of root_
  Scope root_;
  Scope* scope_ = &root_;
  Text* out_ = nullptr;
  Value block_;  // the output of a {% set %} or {% filter %} block, for its filter
};

}  // namespace recurve::jinja

#include <map>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "server/text/jinja/ast.h"
#include "server/text/jinja/callables.h"
#include "server/text/jinja/operations.h"
#include "server/text/jinja/run.h"
#include "server/text/jinja/template.h"

namespace recurve::jinja {
namespace {

// Sets a variable, and restores it at the end of the scope.
template <typename T>
class Exchanged {
 public:
  Exchanged(T& variable, T value) : variable_(variable), before_(variable) { variable = value; }
  ~Exchanged() { variable_ = before_; }
  Exchanged(const Exchanged&) = delete;

 private:
  T& variable_;
  const T before_;
};

// The variables set in an iteration of a loop, a macro or the template. Lookups continue in the
// outer scope. Not hashed, as in Dict: no choice of names makes lookups slow.
class Scope {
 public:
  explicit Scope(const Scope* outer = nullptr) : outer_(outer) {}

  // `name` must live as long as the scope.
  void set(std::string_view name, Value value) {
    variables_.insert_or_assign(name, std::move(value));
  }

  const Value* find(std::string_view name) const {
    for (const Scope* scope = this; scope != nullptr; scope = scope->outer_) {
      const auto found = scope->variables_.find(name);
      if (found != scope->variables_.end()) return &found->second;
    }
    return nullptr;
  }

 private:
  const Scope* const outer_;
  std::map<std::string_view, Value> variables_;
};

// Executes a template once.
class Evaluator {
 public:
  Evaluator(Run& run, const Template::Layers& variables) : run_(run), variables_(variables) {}

  Text render(const Block& block) {
    Text out;
    out.bytes.reserve(run_.likely_bytes());
    const Exchanged output(out_, &out);
    execute(block);
    return out;
  }

 private:
  enum class Flow { kOn, kBreak, kContinue };

  Flow execute(const Block& block) {
    const Run::Level level(run_);
    for (const Statement& statement : block) {
      const Flow flow = execute(statement);
      if (flow != Flow::kOn) return flow;
    }
    return Flow::kOn;
  }

  Flow execute(const Statement& statement) {
    run_.line = statement.line;
    run_.spend();
    return std::visit([this](const auto& node) { return execute_node(node); }, statement.node);
  }

  Flow execute_node(const TextOutput& text) {
    write(Text(text.text, Origin::kTemplate));
    return Flow::kOn;
  }

  Flow execute_node(const Print& print) {
    const Value value = evaluate(*print.value);
    value.text() != nullptr ? write(*value.text()) : write(to_text(run_, value));
    return Flow::kOn;
  }

  Flow execute_node(const If& node) {
    for (const auto& [condition, body] : node.branches) {
      if (evaluate(*condition).is_true()) return execute(body);
    }
    return execute(node.otherwise);
  }

  Flow execute_node(const For& node) {
    const auto items = std::make_shared<const std::vector<Value>>(loop_items(node));
    const int levels = nesting(*items);
    for (size_t i = 0; i < items->size(); ++i) {
      run_.spend();
      Scope scope(scope_);
      const Exchanged inside(scope_, &scope);
      scope.set("loop",
                run_.checked(Value(std::make_shared<const Loop>(Loop{items, i, levels + 1}))));
      assign(node.target, (*items)[i]);
      if (execute(node.body) == Flow::kBreak) break;
    }
    if (!items->empty()) return Flow::kOn;
    Scope scope(scope_);
    const Exchanged inside(scope_, &scope);
    return execute(node.otherwise);
  }

  Flow execute_node(const Set& set) {
    assign(set.target, evaluate(*set.value));
    return Flow::kOn;
  }

  Flow execute_node(const SetBlock& set) {
    Value value = run_.text(captured(set.body));
    if (set.filter != nullptr) value = filtered(*set.filter, std::move(value));
    assign(set.target, std::move(value));
    return Flow::kOn;
  }

  Flow execute_node(const FilterBlock& node) {
    const Value value = filtered(*node.filter, run_.text(captured(node.body)));
    write(to_string(run_, value, "the result of the filter of a block"));
    return Flow::kOn;
  }

  Flow execute_node(const Macro& macro) {
    scope_->set(macro.name, Value(&macro));
    return Flow::kOn;
  }

  Flow execute_node(const Generation& generation) {
    write(captured(generation.body));
    return Flow::kOn;
  }

  Flow execute_node(const Break&) { return Flow::kBreak; }
  Flow execute_node(const Continue&) { return Flow::kContinue; }

  // The condition of the loop may use the target, but not `loop`.
  std::vector<Value> loop_items(const For& node) {
    std::vector<Value> items = items_of(run_, evaluate(*node.items));
    if (node.condition == nullptr) return items;
    std::vector<Value> chosen;
    for (Value& item : items) {
      Scope scope(scope_);
      const Exchanged inside(scope_, &scope);
      assign(node.target, item);
      if (evaluate(*node.condition).is_true()) chosen.push_back(std::move(item));
    }
    return chosen;
  }

  void assign(const Target& target, Value value) {
    if (!target.member.empty()) {
      const Value* found = find(target.names[0]);
      if (found == nullptr || found->name_space() == nullptr) {
        run_.fail("'{}' is not a namespace: cannot set its member '{}'", target.names[0],
                  target.member);
      }
      found->name_space()->members[target.member] = std::move(value);
      return;
    }
    if (!target.unpacks) return scope_->set(target.names[0], std::move(value));
    const std::vector<Value> values = items_of(run_, value);
    if (values.size() != target.names.size()) {
      run_.fail("expected {} values, found {}", target.names.size(), values.size());
    }
    for (size_t i = 0; i < values.size(); ++i) scope_->set(target.names[i], values[i]);
  }

  void write(const Text& text) {
    run_.spend(text.bytes.size());
    run_.check_size(out_->bytes.size() + text.bytes.size());
    out_->append(text);
  }

  // its output, in a new scope
  Text captured(const Block& block) {
    Text out;
    Scope scope(scope_);
    const Exchanged inside(scope_, &scope);
    const Exchanged output(out_, &out);
    execute(block);
    return out;
  }

  Value filtered(const Expression& filter, Value block) {
    const Exchanged input(block_, block);
    return evaluate(filter);
  }

  Value evaluate(const Expression& expression) {
    const Run::Level level(run_);
    run_.line = expression.line;
    run_.spend();
    return std::visit([this](const auto& node) { return evaluate_node(node); }, expression.node);
  }

  Value evaluate_node(const Literal& literal) { return literal.value; }

  Value evaluate_node(const Name& name) {
    if (const Value* found = find(name.name)) return *found;
    if (const Function* function = find_function(name.name)) return Value(function->id);
    return Value(Undefined{fmt::format("'{}' is undefined", name.name)});
  }

  Value evaluate_node(const ListLiteral& list) {
    std::vector<Value> items;
    for (const ExpressionPtr& item : list.items) items.push_back(evaluate(*item));
    return run_.list(std::move(items), list.tuple);
  }

  Value evaluate_node(const DictLiteral& literal) {
    Dict dict;
    for (const auto& [key, value] : literal.entries) {
      const Value name = evaluate(*key);
      dict.set(to_string(run_, name, "the key of a dict"), evaluate(*value));
    }
    return run_.checked(Value::dict(std::move(dict)));
  }

  Value evaluate_node(const Attribute& node) {
    return attribute(run_, evaluate(*node.object), node.name);
  }

  Value evaluate_node(const Item& node) {
    const Value object = evaluate(*node.object);
    return item(run_, object, evaluate(*node.key));
  }

  Value evaluate_node(const Slice& node) {
    const auto part = [this](const ExpressionPtr& expression) {
      return expression == nullptr ? Value(None{}) : evaluate(*expression);
    };
    const Value object = evaluate(*node.object);
    const Value begin = part(node.begin), end = part(node.end);
    return slice(run_, object, begin, end, part(node.step));
  }

  Value evaluate_node(const Unary& node) {
    const Value value = evaluate(*node.operand);
    if (node.op == Operator::kNot) return Value(!value.is_true());
    const Value negated = negate(run_, value);
    return node.op == Operator::kNegate ? negated : negate(run_, negated);
  }

  Value evaluate_node(const Chain& chain) {
    Value left = evaluate(*chain.first);
    for (const auto& [op, right] : chain.rest) {
      if (op == Operator::kAnd) {
        if (!left.is_true()) return left;
        left = evaluate(*right);
      } else if (op == Operator::kOr) {
        if (left.is_true()) return left;
        left = evaluate(*right);
      } else {
        left = apply(run_, op, left, evaluate(*right));
      }
    }
    return left;
  }

  Value evaluate_node(const Comparison& comparison) {
    Value left = evaluate(*comparison.first);
    for (const auto& [op, expression] : comparison.rest) {
      Value right = evaluate(*expression);
      if (!compare(run_, op, left, right)) return Value(false);
      left = std::move(right);
    }
    return Value(true);
  }

  Value evaluate_node(const Conditional& node) {
    if (evaluate(*node.condition).is_true()) return evaluate(*node.yes);
    if (node.no != nullptr) return evaluate(*node.no);
    return Value(Undefined{"the condition of an inline 'if' without 'else' is false"});
  }

  Value evaluate_node(const FilterCall& call) {
    const Value input = call.input == nullptr ? block_ : evaluate(*call.input);
    const CallValues arguments = evaluate(call.arguments);
    return call.filter->apply(run_, input, arguments);
  }

  Value evaluate_node(const TestCall& call) {
    const Value input = evaluate(*call.input);
    const CallValues arguments = evaluate(call.arguments);
    return Value(call.test->apply(run_, input, arguments) != call.negated);
  }

  Value evaluate_node(const Call& call) {
    const auto* method = std::get_if<Attribute>(&call.callee->node);
    if (method == nullptr) {
      const Value callee = evaluate(*call.callee);
      return call_value(callee, evaluate(call.arguments));
    }
    const Value object = evaluate(*method->object);
    return call_method(*method, object, evaluate(call.arguments));
  }

  // a variable of a scope or of variables_
  const Value* find(std::string_view name) const {
    if (const Value* set = scope_->find(name)) return set;
    for (const Template::Variables* variables : variables_) {
      const auto given = variables->find(name);
      if (given != variables->end()) return &given->second;
    }
    return nullptr;
  }

  Value call_method(const Attribute& callee, const Value& object, const CallValues& arguments) {
    const MethodEntry* method = nullptr;
    if (object.text() != nullptr) method = find_string_method(callee.name);
    if (object.dict() != nullptr) method = find_dict_method(callee.name);
    if (method != nullptr) return method->call(run_, object, arguments);
    return call_value(attribute(run_, object, callee.name), arguments);
  }

  Value call_value(const Value& callee, const CallValues& arguments) {
    if (const auto* builtin = callee.get<Builtin>()) {
      return function_of(*builtin).call(run_, arguments);
    }
    if (const auto* macro = callee.get<const Macro*>()) return call_macro(**macro, arguments);
    if (const auto* undefined = callee.get<Undefined>()) run_.fail("{}", undefined->what);
    run_.fail("{} cannot be called", type_name(callee));
  }

  Value call_macro(const Macro& macro, const CallValues& arguments) {
    const auto is_parameter = [&](const std::string& name) {
      for (const auto& parameter : macro.parameters) {
        if (parameter.first == name) return true;
      }
      return false;
    };
    if (arguments.positional.size() > macro.parameters.size()) {
      run_.fail("macro '{}' takes {} arguments, got {}", macro.name, macro.parameters.size(),
                arguments.positional.size());
    }
    for (const auto& named : arguments.named) {
      run_.spend(64 * macro.parameters.size());
      if (!is_parameter(named.first)) {
        run_.fail("macro '{}' takes no argument '{}'", macro.name, named.first);
      }
    }
    Scope scope(&root_);
    const Exchanged inside(scope_, &scope);
    for (size_t i = 0; i < macro.parameters.size(); ++i) {
      const auto& [name, if_missing] = macro.parameters[i];
      const Value* given = arguments.find(i, name);
      if (given != nullptr) {
        scope.set(name, *given);
      } else if (if_missing != nullptr) {
        scope.set(name, evaluate(*if_missing));
      } else {
        scope.set(name, Value(Undefined{fmt::format("parameter '{}' was not provided", name)}));
      }
    }
    return run_.text(captured(macro.body));
  }

  CallValues evaluate(const Arguments& arguments) {
    CallValues values;
    for (const ExpressionPtr& value : arguments.positional) {
      values.positional.push_back(evaluate(*value));
    }
    for (const auto& [name, value] : arguments.named) {
      values.named.emplace_back(name, evaluate(*value));
    }
    return values;
  }

  Run& run_;
  const Template::Layers& variables_;  // outside of root_
  Scope root_;
  Scope* scope_ = &root_;
  Text* out_ = nullptr;
  Value block_;  // the output of a {% set %} or {% filter %} block, for its filter
};

}  // namespace

struct Template::Parsed {
  Block block;
};

Template::Template(std::string_view source)
    : parsed_(std::make_unique<const Parsed>(Parsed{parse(source)})) {}
Template::~Template() = default;
Template::Template(Template&&) noexcept = default;

Text Template::render(const Layers& variables, const std::tm& now, const Limits& limits,
                      const WorkLimits& work) const {
  Run run(limits, now, work);
  return Evaluator(run, variables).render(parsed_->block);
}

}  // namespace recurve::jinja

#include <algorithm>

#include "server/text/jinja/callables.h"
#include "server/text/jinja/operations.h"

// Jinja's tests.
namespace recurve::jinja {
namespace {

using Values = const CallValues&;

bool defined(Run&, const Value& v, Values) { return !v.is_undefined(); }
bool undefined(Run&, const Value& v, Values) { return v.is_undefined(); }
bool none(Run&, const Value& v, Values) { return v.is_none(); }
bool string(Run&, const Value& v, Values) { return v.text() != nullptr; }
bool number(Run&, const Value& v, Values) { return v.is_number(); }
bool integer(Run&, const Value& v, Values) { return v.is_integer(); }
bool real(Run&, const Value& v, Values) { return v.get<double>() != nullptr; }
bool boolean(Run&, const Value& v, Values) { return v.get<bool>() != nullptr; }
bool is_true(Run&, const Value& v, Values) { return v.get<bool>() && *v.get<bool>(); }
bool is_false(Run&, const Value& v, Values) { return v.get<bool>() && !*v.get<bool>(); }
bool mapping(Run&, const Value& v, Values) { return v.dict() != nullptr; }
// Jinja's undefined has a length and items, of which it only complains when they are used.
bool sequence(Run&, const Value& v, Values) {
  return v.text() != nullptr || v.list() != nullptr || v.dict() != nullptr || v.is_undefined();
}
bool iterable(Run& run, const Value& v, Values call) {
  return sequence(run, v, call) || v.generator() != nullptr || v.loop() != nullptr;
}
bool callable(Run&, const Value& v, Values) {
  return v.get<const Macro*>() || v.get<Builtin>() || v.get<Method>();
}

const Value& other(Run& run, Values call) {
  if (call.positional.empty()) run.fail("the test needs an argument");
  return call.positional[0];
}

template <Operator op>
bool compares(Run& run, const Value& v, Values call) {
  return compare(run, op, v, other(run, call));
}

bool divisible_by(Run& run, const Value& v, Values call) {
  return equal(run, apply(run, Operator::kModulo, v, other(run, call)), Value(int64_t{0}));
}
bool odd(Run& run, const Value& v, Values) {
  return equal(run, apply(run, Operator::kModulo, v, Value(int64_t{2})), Value(int64_t{1}));
}
bool even(Run& run, const Value& v, Values) {
  return equal(run, apply(run, Operator::kModulo, v, Value(int64_t{2})), Value(int64_t{0}));
}

constexpr Predicate kPredicates[] = {
    {"defined", "", defined},
    {"undefined", "", undefined},
    {"none", "", none},
    {"string", "", string},
    {"number", "", number},
    {"integer", "", integer},
    {"float", "", real},
    {"boolean", "", boolean},
    {"true", "", is_true},
    {"false", "", is_false},
    {"mapping", "", mapping},
    {"sequence", "", sequence},
    {"iterable", "", iterable},
    {"callable", "", callable},
    {"divisibleby", "num", divisible_by},
    {"odd", "", odd},
    {"even", "", even},
    {"eq", "other", compares<Operator::kEqual>},
    {"equalto", "other", compares<Operator::kEqual>},
    {"==", "other", compares<Operator::kEqual>},
    {"ne", "other", compares<Operator::kNotEqual>},
    {"!=", "other", compares<Operator::kNotEqual>},
    {"lt", "other", compares<Operator::kLess>},
    {"lessthan", "other", compares<Operator::kLess>},
    {"<", "other", compares<Operator::kLess>},
    {"le", "other", compares<Operator::kLessEqual>},
    {"<=", "other", compares<Operator::kLessEqual>},
    {"gt", "other", compares<Operator::kGreater>},
    {"greaterthan", "other", compares<Operator::kGreater>},
    {">", "other", compares<Operator::kGreater>},
    {"ge", "other", compares<Operator::kGreaterEqual>},
    {">=", "other", compares<Operator::kGreaterEqual>},
    {"in", "seq", compares<Operator::kIn>},
};

}  // namespace

const Predicate* find_predicate(std::string_view name) {
  const auto found = std::find_if(std::begin(kPredicates), std::end(kPredicates),
                                  [&](const Predicate& p) { return p.name == name; });
  return found == std::end(kPredicates) ? nullptr : &*found;
}

}  // namespace recurve::jinja

#include "server/text/jinja/callables.h"

#include <algorithm>

#include "server/text/jinja/operations.h"

namespace recurve::jinja {
namespace {

// Removes and returns the next word of `words`; empty at the end.
std::string_view take_word(std::string_view* words) {
  const size_t end = words->find(' ');
  const std::string_view word = words->substr(0, end);
  *words = end == words->npos ? std::string_view() : words->substr(end + 1);
  return word;
}

// The global functions of chat templates in transformers.

constexpr int64_t kMaxRange = 100'000;  // as in Jinja's sandbox

Value range(Run& run, const CallValues& call) {
  if (call.positional.empty()) run.fail("range needs a number");
  const auto argument = [&](size_t i) { return to_index(run, call.positional[i], "range"); };
  const bool only_end = call.positional.size() == 1;
  const int64_t begin = only_end ? 0 : argument(0);
  const int64_t end = argument(only_end ? 0 : 1);
  const int64_t step = call.positional.size() == 3 ? argument(2) : 1;
  if (step == 0) run.fail("the step of a range is 0");
  std::vector<Value> items;
  bool overflow = false;
  for (int64_t i = begin; !overflow && (step > 0 ? i < end : i > end);
       overflow = __builtin_add_overflow(i, step, &i)) {
    if (static_cast<int64_t>(items.size()) == kMaxRange) {
      run.fail("a range has more than {} numbers", kMaxRange);
    }
    run.spend();
    items.emplace_back(i);
  }
  return run.list(std::move(items));
}

// The entries of a dict, and named arguments.
Dict members(Run& run, const CallValues& call) {
  Dict all;
  for (const Value& first : call.positional) {
    if (first.dict() == nullptr) run.fail("expected a dict, got {}", type_name(first));
    run.spend(64 * first.dict()->entries().size());
    all = *first.dict();
  }
  for (const auto& [name, value] : call.named) all.set(Text(name, Origin::kTemplate), value);
  return all;
}

Value make_namespace(Run& run, const CallValues& call) {
  Namespace& made = run.namespaces.emplace_back();
  const Dict all = members(run, call);
  for (const auto& [name, value] : all.entries()) made.members[name.bytes] = value;
  return Value(&made);
}

Value make_dict(Run& run, const CallValues& call) {
  return run.checked(Value::dict(members(run, call)));
}

Value raise_exception(Run& run, const CallValues& call) {
  if (call.positional.empty()) run.fail("the template rejects the messages");
  const std::string why = to_text(run, call.positional[0]).bytes;
  run.fail("the template rejects the messages: {}", why);
}

Value strftime_now(Run& run, const CallValues& call) {
  if (call.positional.empty()) run.fail("strftime_now needs a format");
  const std::string& format = to_string(run, call.positional[0], "the format of the time").bytes;
  if (format.empty()) return Value::text("");
  std::string out(format.size() * 32 + 64, '\0');
  const size_t size = std::strftime(out.data(), out.size(), format.c_str(), &run.now);
  out.resize(size);
  return run.text(Text(out, Origin::kTemplate));
}

constexpr Function kFunctions[] = {
    {"range", "start stop step", Builtin::kRange, range},
    {"namespace", "mapping **", Builtin::kNamespace, make_namespace},
    {"dict", "mapping **", Builtin::kDict, make_dict},
    {"raise_exception", "message", Builtin::kRaiseException, raise_exception},
    {"strftime_now", "format", Builtin::kStrftimeNow, strftime_now},
};

// Jinja's tests.

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
// As in Jinja, where undefined has a length and items.
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

constexpr Test kTests[] = {
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

const Value* CallValues::find(size_t position, std::string_view name) const {
  if (position < positional.size()) return &positional[position];
  for (const auto& [key, value] : named) {
    if (key == name) return &value;
  }
  return nullptr;
}

bool takes_positional(std::string_view parameters, size_t count) {
  for (; count > 0; --count) {
    const std::string_view name = take_word(&parameters);
    if (name == "*") return true;
    if (name.empty() || name == "**") return false;
  }
  return true;
}

bool takes_named(std::string_view parameters, std::string_view name) {
  while (!parameters.empty()) {
    const std::string_view parameter = take_word(&parameters);
    if (parameter == name || parameter == "**") return true;
  }
  return false;
}

const Function* find_function(std::string_view name) { return find_by_name(kFunctions, name); }

const Function& function_of(Builtin id) {
  return *std::find_if(std::begin(kFunctions), std::end(kFunctions),
                       [&](const Function& f) { return f.id == id; });
}

const Test* find_test(std::string_view name) { return find_by_name(kTests, name); }

}  // namespace recurve::jinja

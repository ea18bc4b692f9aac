#include <algorithm>

#include "server/text/jinja/callables.h"
#include "server/text/jinja/operations.h"

// The global functions that transformers gives to chat templates.
namespace recurve::jinja {
namespace {

constexpr int64_t kMaxRange = 100'000;  // as Jinja's sandbox has it

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

// Members by name, and those of a dict before them.
Dict members(Run& run, const CallValues& call) {
  Dict all;
  for (const Value& first : call.positional) {
    if (first.dict() == nullptr) run.fail("a dict was expected, got {}", type_name(first));
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
  if (call.positional.empty()) run.fail("the template refuses the messages");
  const std::string why = to_text(run, call.positional[0]).bytes;
  run.fail("the template refuses the messages: {}", why);
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

}  // namespace

const Function* find_function(std::string_view name) {
  const auto found = std::find_if(std::begin(kFunctions), std::end(kFunctions),
                                  [&](const Function& f) { return f.name == name; });
  return found == std::end(kFunctions) ? nullptr : &*found;
}

const Function& function_of(Builtin id) {
  return *std::find_if(std::begin(kFunctions), std::end(kFunctions),
                       [&](const Function& f) { return f.id == id; });
}

}  // namespace recurve::jinja

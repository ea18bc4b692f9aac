#pragma once

#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/text/jinja/value.h"

namespace recurve::jinja {

class Run;

// The arguments of a call, evaluated.
struct CallValues {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;

  // The argument of that name or at that place; null where it was not given.
  const Value* find(size_t position, std::string_view name) const;
};

// Whether an argument that may be missing is there and is not none, and whether it is true.
inline bool is_given(const Value* value) { return value != nullptr && !value->is_none(); }
inline bool is_set(const Value* value) { return value != nullptr && value->is_true(); }

// What a template can call. `parameters` are the names of the arguments in order, separated by
// spaces; "*" takes any number, "**" any with a name. All tables are fixed; find_... give null
// where there is none of that name.

// x | name(...)
struct Filter {
  std::string_view name, parameters;
  Value (*apply)(Run& run, const Value& input, const CallValues& arguments);
};
const Filter* find_filter(std::string_view name);  // filters.cc
std::span<const Filter> list_filters();            // list_filters.cc; find_filter() knows them

// x is name(...)
struct Predicate {
  std::string_view name, parameters;
  bool (*holds)(Run& run, const Value& input, const CallValues& arguments);
};
const Predicate* find_predicate(std::string_view name);  // predicates.cc

// x.name(...)
struct MethodEntry {
  std::string_view name, parameters;
  Value (*call)(Run& run, const Value& object, const CallValues& arguments);
};
const MethodEntry* find_string_method(std::string_view name);  // methods.cc
const MethodEntry* find_dict_method(std::string_view name);

// name(...)
struct Function {
  std::string_view name, parameters;
  Builtin id;
  Value (*call)(Run& run, const CallValues& arguments);
};
const Function* find_function(std::string_view name);  // functions.cc
const Function& function_of(Builtin id);

// Whether `parameters` has room for so many arguments by place, and one of that name.
bool takes_positional(std::string_view parameters, size_t count);
bool takes_named(std::string_view parameters, std::string_view name);

}  // namespace recurve::jinja

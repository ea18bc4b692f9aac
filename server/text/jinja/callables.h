#pragma once

#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/text/jinja/value.h"

namespace recurve::jinja {

class Run;

// The evaluated arguments of a call.
struct CallValues {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;

  // The argument at this position or with this name; null if it is missing.
  const Value* find(size_t position, std::string_view name) const;
};

// Whether an argument that may be missing (null) is not none, or is true.
inline bool is_given(const Value* value) { return value != nullptr && !value->is_none(); }
inline bool is_set(const Value* value) { return value != nullptr && value->is_true(); }

// What a template can call. `parameters` are the names of the parameters in order, separated by
// spaces; "*" is any number of positional arguments, "**" any named arguments. The functions
// find_... search constant tables, and return null for an unknown name.

// x | name(...)
struct Filter {
  std::string_view name, parameters;
  Value (*apply)(Run& run, const Value& input, const CallValues& arguments);
};
const Filter* find_filter(std::string_view name);  // filters.cc
std::span<const Filter> list_filters();            // list_filters.cc; for find_filter()

// x is name(...)
struct Test {
  std::string_view name, parameters;
  bool (*apply)(Run& run, const Value& input, const CallValues& arguments);
};
const Test* find_test(std::string_view name);  // callables.cc

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
const Function* find_function(std::string_view name);  // callables.cc
const Function& function_of(Builtin id);

// Whether `parameters` allow this number of positional arguments, or an argument of this name.
bool takes_positional(std::string_view parameters, size_t count);
bool takes_named(std::string_view parameters, std::string_view name);

// The entry with this name in a table of the above, or null.
template <typename Table>
auto find_by_name(const Table& table, std::string_view name) -> decltype(std::data(table)) {
  for (const auto& entry : table) {
    if (entry.name == name) return &entry;
  }
  return nullptr;
}

}  // namespace recurve::jinja

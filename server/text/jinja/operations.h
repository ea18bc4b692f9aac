#pragma once

#include <string_view>
#include <vector>

#include "server/text/jinja/ast.h"
#include "server/text/jinja/run.h"

namespace recurve::jinja {

// Python's operations on values. An operation that raises in Python fails the run.

Value apply(Run& run, Operator op, const Value& left, const Value& right);
bool compare(Run& run, Operator op, const Value& left, const Value& right);
Value negate(Run& run, const Value& value);
bool equal(Run& run, const Value& left, const Value& right);
// A key that is equal for two values if and only if they are: numbers, strings, none, undefined and
// tuples of them. Fails the run for other values, which are not hashable in Python.
std::string hash_key(Run& run, const Value& value);
// The order of numbers, strings, and lists of them. Fails the run for others.
bool less(Run& run, const Value& left, const Value& right);

// Fails the run: `what` (add, compare, ...) is not defined for these operands.
[[noreturn]] void fail_operands(const Run& run, const char* what, const Value& left,
                                const Value& right);

// object.name and object[key]; undefined if there is none.
Value attribute(Run& run, const Value& object, std::string_view name);
Value item(Run& run, const Value& object, const Value& key);
Value slice(Run& run, const Value& object, const Value& begin, const Value& end, const Value& step);

// text[begin:end:step] for resolved begin and end: in characters, and -1 for before the first if
// step is negative.
Text sliced(Run& run, const Text& text, int64_t begin, int64_t end, int64_t step);
Text reversed(Run& run, const Text& text);

// The items over which a loop iterates: characters of a string, keys of a dict. Exhausts a
// generator.
std::vector<Value> items_of(Run& run, const Value& value);
// The entries of a dict as tuples.
std::vector<Value> pairs_of(Run& run, const Dict& dict);
int64_t length_of(Run& run, const Value& value);

// Python's str() and repr().
Text to_text(Run& run, const Value& value);
Text repr(Run& run, const Value& value);

// `text`, which is markup if `source` is: for operations of str that return Markup for markupsafe's
// Markup.
Value with_markup_of(Run& run, const Text& source, Text text);

// text.replace(from, to, most), which fails before it exceeds the memory limit of the run.
Value replace_checked(Run& run, const Text& text, const Text& from, const Text& to, int64_t most);

// Conversions of arguments. `what` names the argument in messages.
int64_t to_index(Run& run, const Value& value, std::string_view what);
const Text& to_string(Run& run, const Value& value, std::string_view what);

}  // namespace recurve::jinja

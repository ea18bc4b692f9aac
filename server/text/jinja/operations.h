#pragma once

#include <string_view>
#include <vector>

#include "server/text/jinja/ast.h"
#include "server/text/jinja/run.h"

namespace recurve::jinja {

// What Python does with values. A use that Python refuses fails the run.

Value apply(Run& run, Operator op, const Value& left, const Value& right);
bool compare(Run& run, Operator op, const Value& left, const Value& right);
Value negate(Run& run, const Value& value);
bool equal(Run& run, const Value& left, const Value& right);
// What two values have in common if and only if they are equal: numbers, strings, none, undefined
// and tuples of them. Fails the run for others, which Python cannot hash.
std::string hash_key(Run& run, const Value& value);
// For sorting: numbers, strings, or lists of them.
bool less(Run& run, const Value& left, const Value& right);

// Fails the run: `what` (add, compare, ...) has no meaning for these two.
[[noreturn]] void refuse(const Run& run, const char* what, const Value& left, const Value& right);

// object.name and object[key]; undefined where there is none.
Value attribute(Run& run, const Value& object, std::string_view name);
Value item(Run& run, const Value& object, const Value& key);
Value slice(Run& run, const Value& object, const Value& begin, const Value& end, const Value& step);

// text[begin:end:step] where Python has resolved begin and end: in characters, both may be -1 where
// step is negative.
Text sliced(Run& run, const Text& text, int64_t begin, int64_t end, int64_t step);
Text reversed(Run& run, const Text& text);

// What a loop goes through: characters of a string, keys of a dict. Uses a generator up.
std::vector<Value> items_of(Run& run, const Value& value);
int64_t length_of(Run& run, const Value& value);

// Python's str() and repr().
Text to_text(Run& run, const Value& value);
Text repr(Run& run, const Value& value);

// `text`, markup if `source` is: for what Python's str does and markupsafe's Markup keeps.
Value like(Run& run, const Text& source, Text text);

// text.replace(from, to, most) without more memory than the run may take.
Value replaced(Run& run, const Text& text, const Text& from, const Text& to, int64_t most);

// The arguments of functions. `what` names them in messages.
int64_t to_index(Run& run, const Value& value, std::string_view what);
const Text& to_string(Run& run, const Value& value, std::string_view what);

}  // namespace recurve::jinja

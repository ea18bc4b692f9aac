#pragma once

#include <string_view>

#include "server/text/jinja/value.h"
#include "server/text/work_limits.h"

namespace recurve::jinja {

// What may be made of JSON, by one or several calls.
struct JsonBudget {
  size_t most;      // values: lists, objects and what is in them; keys are not counted
  size_t used = 0;  // of them
  WorkLimits work = {};
};

// JSON as Python's json.loads gives it to a template; strings and keys are of that origin.
// Throws Error with one sentence for what is no JSON, is nested more than 64 deep or has integers
// of more than 64 bits, and where the budget is spent; WorkUnwanted as its limits have it. Time is
// linear but for the keys of an object, of which the logarithm comes in.
Value parse_json(std::string_view json, Origin origin, JsonBudget& budget);

}  // namespace recurve::jinja

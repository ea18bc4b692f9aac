#pragma once

#include <string_view>

#include "server/text/jinja/value.h"

namespace recurve::jinja {

// JSON as Python's json.loads gives it to a template; strings and keys are of that origin.
// Throws Error with one sentence for what is no JSON, is nested more than 64 deep or has integers
// of more than 64 bits. Time is linear.
Value parse_json(std::string_view json, Origin origin);

}  // namespace recurve::jinja

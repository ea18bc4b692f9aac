#pragma once

#include <optional>
#include <string_view>

#include "server/text/jinja/run.h"
#include "server/text/jinja/value.h"
#include "server/text/work_limits.h"

namespace recurve::jinja {

// The arguments of json.dumps().
struct JsonStyle {
  bool ascii = false;
  std::optional<Text> indent = {};  // none: one line
  Text item_separator = Text(", ", Origin::kTemplate);
  Text key_separator = Text(": ", Origin::kTemplate);
  bool sort_keys = false;
};

// Python's json.dumps().
Text to_json(Run& run, const Value& value, const JsonStyle& style);

// A limit of JSON values, for one or several calls.
struct JsonBudget {
  size_t most;  // values: lists, objects and the values in them, without keys
  size_t used = 0;
  WorkLimits work = {};
};

// Python's json.loads(); strings and keys have this origin. Throws Error for invalid JSON, more
// than 64 levels or integers of more than 64 bits, and if the budget is exceeded; WorkUnwanted if
// its limits say so. Time is linear, times the logarithm of the number of keys of an object.
Value parse_json(std::string_view json, Origin origin, JsonBudget& budget);

}  // namespace recurve::jinja

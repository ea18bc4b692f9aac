#pragma once

#include <optional>

#include "server/text/jinja/run.h"

namespace recurve::jinja {

struct JsonStyle {
  bool ascii = false;
  std::optional<Text> indent = {};  // none: one line
  Text item_separator = Text(", ", Origin::kTemplate);
  Text key_separator = Text(": ", Origin::kTemplate);
  bool sort_keys = false;
};

// Python's json.dumps().
Text to_json(Run& run, const Value& value, const JsonStyle& style);

}  // namespace recurve::jinja

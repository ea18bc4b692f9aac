#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace recurve {

inline constexpr size_t kMostTags = 128;

// The structural tag of the library for {"triggers": ["<fn="], "structures": [{"begin": "<fn=add>",
// "schema": {...}, "end": "</fn>"}, ...]}: free text in which each trigger begins one of the
// structures that start with it, followed by a value of its schema and its end. Optional:
// "required": true, at least one structure; "single": true, at most one, which ends the text.
// `any_whitespace`: as in ConstraintText. Throws ConstraintRefused.
std::string enforceable_tags(std::string_view tags, bool any_whitespace = false);

// The same for ConstraintText::Form::kToolCalls, JSON of server/serving/tool_use.cc. `shape` is the
// shape of the calls (tool_call_parser.h). `mark` and `close` enclose them, as control tokens if
// they have ids. `required`: the answer is calls, or JSON of `content` if there is one; `single`:
// one call. Each of `calls` has a schema between its beginning and its end.
std::string enforceable_calls(std::string_view calls);
// The control tokens that such an answer can have.
std::vector<int32_t> control_ids_of(std::string_view calls);

}  // namespace recurve

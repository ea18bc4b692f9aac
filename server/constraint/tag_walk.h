#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace recurve {

inline constexpr size_t kMostTags = 128;

// The structural tag that the library reads for {"triggers": ["<fn="], "structures": [{"begin":
// "<fn=add>", "schema": {...}, "end": "</fn>"}, ...]}: free text in which each trigger begins one
// of the structures that begin with it, with what its schema allows and its end. Optional:
// "required": true, at least one; "single": true, at most one, and nothing behind it. Throws
// ConstraintRefused.
std::string enforceable_tags(std::string_view tags);

// The same for ConstraintText::Form::kToolCalls, JSON of server/serving/tool_use.cc: `shape` is how
// the calls stand in the answer (tool_forms.h), `mark` and `close` stand around them, which are
// control tokens where they have ids; `required`: the answer is calls, `single`: of one. Each of
// `calls` has a schema between what begins and ends it.
std::string enforceable_calls(std::string_view calls);
// The control tokens that such an answer may have.
std::vector<int32_t> control_ids_of(std::string_view calls);

}  // namespace recurve

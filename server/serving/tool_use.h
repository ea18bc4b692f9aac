#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/constraint/constraint.h"
#include "server/request/refusal.h"
#include "server/text/chat/tool_call_parser.h"

namespace recurve {

struct ModelText;

// How an answer may use the tools of its conversation.
struct ToolUse {
  bool required = false;                  // at least one call, no text
  std::vector<std::string> allowed = {};  // names of the tools that may be called; empty: all
  bool parallel = true;                   // more than one call, if the model's form allows it

  // One call of this tool.
  static ToolUse of(std::string name) {
    return {.required = true, .allowed = {std::move(name)}, .parallel = false};
  }
};

// How to separate the calls of an answer from its text.
struct ToolReading {
  const ToolForm* form = nullptr;
  int32_t mark = -1;                            // id of the form's mark, if it is a control token
  std::shared_ptr<const ToolTypes> types = {};  // of the parameters, if the form needs them
  bool exclusive = false;  // an answer that does not begin with a call has none
};

// How a model writes calls: the form of its chat template, and its control tokens.
struct ToolRules {
  const ToolForm* form = nullptr;  // null: unknown
  int32_t mark = -1, close = -1;   // control tokens; -1: text, or none
};
ToolRules tool_rules_of(const ModelText& model);

// Checks the tools of a conversation, a JSON array of functions. `constraint`: on the text, JSON or
// a schema, if the request has one, which it has in `field`. It becomes that of the answer: calls,
// of which each names a tool, with arguments that match its schema; or the text. Empty if the build
// has no constraint library, and text and all tools are allowed.
Refused read_tools(const std::string& tools_json, const ToolUse& use, const ToolRules& rules,
                   const std::string& field, ToolReading* reading,
                   std::optional<ConstraintText>* constraint);

// The id of a control token by its text; -1: it is none.
int32_t control_id(std::string_view text, const ModelText& model);

// An id for a call, in the format that the form's templates accept.
std::string make_call_id(const ToolForm& form);

}  // namespace recurve

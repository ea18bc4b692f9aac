#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "server/constraint/constraint.h"
#include "server/request/refusal.h"
#include "server/text/chat/tool_call_parser.h"

namespace recurve {

struct ModelText;

// What an answer may do with the tools of its conversation, as a client says it.
struct ToolUse {
  enum class Choice {
    kAuto,      // it may call them, between texts or alone
    kRequired,  // it is calls, of at least one
    kNamed,     // it is one call, of the one named
  };
  Choice choice = Choice::kAuto;
  std::string name = {};  // with kNamed
  bool parallel = true;   // there may be more than one call, where the model's form has that
};

// How the calls of an answer are told from its text.
struct ToolReading {
  const ToolForm* form = nullptr;
  int32_t mark = -1;  // the id of the form's mark, where that is a control token
};

// How a model writes its calls: by its chat template, and its control tokens.
struct ToolRules {
  const ToolForm* form = nullptr;  // null: no form that is known
  int32_t mark = -1, close = -1;   // control tokens; -1: of the form's text, or none
};
ToolRules tool_rules_of(const ModelText& model);

// Checks the tools of a conversation, a JSON array of functions. `constraint` is what keeps an
// answer to them: each call names one of them, and its arguments are of its schema. Empty where
// this build has no library for it and the answer may be anything.
Refused read_tools(const std::string& tools_json, const ToolUse& use, const ToolRules& rules,
                   ToolReading* reading, std::optional<ConstraintText>* constraint);

// An id for a call, of the kind that the form's templates take.
std::string make_call_id(const ToolForm& form);

}  // namespace recurve

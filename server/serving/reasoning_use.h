#pragma once
#include <cstdint>
#include <memory>

#include "server/constraint/after_reasoning.h"
#include "server/text/chat/reasoning.h"

namespace recurve {

struct ModelText;

// How a model writes its reasoning: the form of its chat template, and its control tokens.
struct ReasoningRules {
  const ReasoningForm* form = nullptr;                 // null: it has none, or it stays in the text
  int32_t open = -1, close = -1;                       // control tokens; -1: text
  std::shared_ptr<const ReasoningTokens> tokens = {};  // for constraints; null: none can be used
};
ReasoningRules reasoning_rules_of(const ModelText& model);

// How to separate the reasoning from one answer.
struct ReasoningReading {
  ReasoningRules rules = {};
  ReasoningStart start = {};
};

// The constraint for the answer after its reasoning.
std::shared_ptr<const Constraint> after_reasoning(std::shared_ptr<const Constraint> constraint,
                                                  const ReasoningReading& reading);

}  // namespace recurve

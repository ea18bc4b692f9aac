#include "server/serving/reasoning_use.h"

#include <string>
#include <utility>

#include "server/constraint/constraint_library.h"
#include "server/serving/tool_use.h"
#include "server/serving/validate.h"

namespace recurve {

ReasoningRules reasoning_rules_of(const ModelText& model) {
  ReasoningRules to{.form = model.chat.reasoning_form};
  if (to.form == nullptr) return to;
  to.open = control_id(to.form->open, model);
  to.close = control_id(to.form->close, model);
  if (!has_constraint_library()) return to;
  to.tokens = std::make_shared<const ReasoningTokens>(
      ReasoningTokens::Tags{.open = std::string(to.form->open),
                            .close = std::string(to.form->close),
                            .open_id = to.open,
                            .close_id = to.close,
                            .most_breaks = kMostBreaks},
      [tokenizer = model.tokenizer](int32_t id) {
        return tokenizer->is_special(id) ? std::string_view() : tokenizer->token_bytes(id);
      },
      model.vocab.usable);
  return to;
}

std::shared_ptr<const Constraint> after_reasoning(std::shared_ptr<const Constraint> constraint,
                                                  const ReasoningReading& reading) {
  using Phase = ReasoningStart::Phase;
  if (reading.rules.tokens == nullptr || reading.start.phase == Phase::kOver) return constraint;
  return after_reasoning(std::move(constraint), reading.rules.tokens,
                         reading.start.phase == Phase::kInside, reading.start.opened);
}

}  // namespace recurve

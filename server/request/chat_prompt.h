#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "server/request/validate.h"

namespace recurve {

// Messages as the ids of a conversation that begins with them or, with `continued`, of one that
// goes on with them behind an answer. Refuses with kInvalid and a sentence; throws WorkUnwanted
// where the limits do.
Refused read_messages(const Conversation& messages, bool continued, const RequestRules& rules,
                      const WorkLimits& limits, std::vector<int32_t>* ids);

// Fills the prompt of a request from messages: where it names a session, for a fresh one and for
// one that goes on, of which at least one must be possible. The answer ends, too, where the chat
// template ends it.
Refused read_messages(const Conversation& messages, const RequestRules& rules,
                      const WorkLimits& limits, Request* request);

// The control token that the model's chat template writes behind an answer, where it writes one.
std::optional<int32_t> find_answer_end(const Chat& chat, const Tokenizer& tokenizer);

}  // namespace recurve

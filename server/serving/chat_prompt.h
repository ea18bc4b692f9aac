#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "server/serving/validate.h"

namespace recurve {

// Messages as the ids of a conversation that begins with them or, with `continued`, of one that
// goes on with them behind an answer. Refuses with kInvalid and a sentence; throws WorkUnwanted
// where the limits do.
Refused read_messages(Conversation messages, bool continued, const ModelText& model,
                      const WorkLimits& limits, std::vector<int32_t>* ids);

// Fills the prompt of a request from messages: where it names a session, for a fresh one and for
// one that goes on, of which at least one must be possible. The answer ends, too, where the chat
// template ends it. `then`: what else is to be read of the messages.
Refused read_messages(Conversation messages, const ModelText& model, const WorkLimits& limits,
                      Request* request, const std::function<Refused(const ChatInput&)>& then);

// How many of the ids that messages have become are those of the first `count` of them, written
// alone: 0 where the chat template does not write these alone.
int64_t tokens_of_messages(const ChatInput& messages, size_t count, const std::vector<int32_t>& ids,
                           const ModelText& model);
// Where other prompts are likely to part from the ids that messages have become, in tokens: behind
// a system prompt, which others are likely to have too, and in front of the last question, which is
// asked anew where it was put badly. Throws WorkUnwanted where the limits do.
std::vector<int64_t> likely_places(const ChatInput& messages, const std::vector<int32_t>& ids,
                                   const ModelText& model);
// How many ids both begin with.
int64_t common_ids(const std::vector<int32_t>& a, const std::vector<int32_t>& b);

// The control token that the model's chat template writes behind an answer, where it writes one.
std::optional<int32_t> find_answer_end(const Chat& chat, const Tokenizer& tokenizer);

}  // namespace recurve

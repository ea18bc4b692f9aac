#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "server/serving/validate.h"

namespace recurve {

// The ids of messages that start a conversation or, with `continued`, follow an answer. Refuses
// with kInvalid and a sentence; throws WorkUnwanted if the limits do.
Refused read_messages(Conversation messages, bool continued, const ModelText& model,
                      const WorkLimits& limits, std::vector<int32_t>* ids);

// Fills the prompt of a request from messages. With a session, both for a fresh one and for one
// that continues; at least one must be possible. The answer also ends where the chat template ends
// it. `then`: reads more from the messages.
Refused read_messages(Conversation messages, const ModelText& model, const WorkLimits& limits,
                      ParsedRequest* parsed, const std::function<Refused(const ChatInput&)>& then);

// The number of leading ids that the first `count` messages have too when they are rendered alone;
// 0 if the chat template cannot render them alone.
int64_t tokens_of_messages(const ChatInput& messages, size_t count, const std::vector<int32_t>& ids,
                           const ModelText& model);
// The lengths of prefixes that later prompts are likely to share: after the system prompt, and
// before the last question, which may be asked again in other words. Throws WorkUnwanted if the
// limits do.
std::vector<int64_t> likely_prefixes(const ChatInput& messages, const std::vector<int32_t>& ids,
                                     const ModelText& model);
// The length of the common prefix.
int64_t common_ids(const std::vector<int32_t>& a, const std::vector<int32_t>& b);

// The control token that the chat template writes after an answer, if any.
std::optional<int32_t> find_answer_end(const Chat& chat, const Tokenizer& tokenizer);

}  // namespace recurve

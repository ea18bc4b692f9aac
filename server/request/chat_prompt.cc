#include "server/request/chat_prompt.h"

#include <algorithm>
#include <utility>

namespace recurve {
namespace {

Refused check_messages(const Conversation& messages, const RequestRules& rules) {
  if (rules.chat.format == nullptr) return invalid("messages", "messages: {}", rules.chat.problem);
  if (messages.messages.empty()) {
    return invalid("messages", "messages must have at least one message, got none");
  }
  if (messages.continue_final_message && messages.add_generation_prompt) {
    return invalid("continue_final_message",
                   "add_generation_prompt and continue_final_message must not both be true");
  }
  return {};
}

Refused encode(const RangedText& text, TextPosition position, const RequestRules& rules,
               const WorkLimits& limits, std::vector<int32_t>* ids) {
  try {
    *ids = rules.tokenizer->encode(text, position, limits);
    return {};
  } catch (const TooManyTokens&) {
    return too_many_tokens(rules);
  }
}

using Write = RangedText (ChatTemplate::*)(const ChatInput&) const;

Refused read(const ChatInput& input, Write write, TextPosition position, const RequestRules& rules,
             std::vector<int32_t>* ids) {
  try {
    return encode(((*rules.chat.format).*write)(input), position, rules, input.work, ids);
  } catch (const ChatError& error) {
    return invalid("messages", "messages: {}", error.what());
  }
}

// Parses the conversation once for all that is to be read of it; to_ids(input) reads.
template <typename ToIds>
Refused with_input(const Conversation& messages, const WorkLimits& limits, const ToIds& to_ids) {
  try {
    return to_ids(ChatInput(messages, limits));
  } catch (const ChatError& error) {
    return invalid("messages", "messages: {}", error.what());
  }
}

std::string sentence_of(const Refused& refused) { return refused ? refused->message : ""; }

// For a session, whose state must be one that later messages can go on from: as one that begins and
// as one that goes on, of which at least one must be possible.
Refused read_session(const ChatInput& input, const RequestRules& rules, Request* request) {
  const Refused start =
      read(input, &ChatTemplate::render_start, TextPosition::kStart, rules, &request->prompt.ids);
  PromptReading& continued = request->continued_prompt.emplace();
  const Refused on = read(input, &ChatTemplate::render_continuation, TextPosition::kContinued,
                          rules, &continued.ids);
  continued.refusal = sentence_of(on);
  continued.replaces_pending = rules.tokens.eos;
  if (!continued.ids.empty() && rules.tokenizer->is_special(continued.ids.front())) {
    continued.replaces_pending.push_back(continued.ids.front());
  }
  if (on) return start;
  request->prompt.refusal = sentence_of(start);
  return {};
}

// Where the template closes an answer with a token, so does the model that was trained on it,
// whatever its config says.
void end_with_turn(const RequestRules& rules, SamplingParams* sampling) {
  if (!rules.answer_end || sampling->ignore_eos) return;
  const auto contains = [&](const std::vector<int32_t>& ids) {
    return std::find(ids.begin(), ids.end(), *rules.answer_end) != ids.end();
  };
  if (contains(rules.tokens.eos) || contains(sampling->stop_ids)) return;
  sampling->stop_ids.push_back(*rules.answer_end);
}

}  // namespace

Refused read_messages(const Conversation& messages, bool continued, const RequestRules& rules,
                      const WorkLimits& limits, std::vector<int32_t>* ids) {
  if (Refused refused = check_messages(messages, rules)) return refused;
  return with_input(messages, limits, [&](const ChatInput& input) {
    return continued ? read(input, &ChatTemplate::render_continuation, TextPosition::kContinued,
                            rules, ids)
                     : read(input, &ChatTemplate::render, TextPosition::kStart, rules, ids);
  });
}

Refused read_messages(const Conversation& messages, const RequestRules& rules,
                      const WorkLimits& limits, Request* request) {
  if (Refused refused = check_messages(messages, rules)) return refused;
  const Refused refused = with_input(messages, limits, [&](const ChatInput& input) {
    if (!request->session.empty()) return read_session(input, rules, request);
    return read(input, &ChatTemplate::render, TextPosition::kStart, rules, &request->prompt.ids);
  });
  if (!refused) end_with_turn(rules, &request->sampling);
  return refused;
}

int64_t common_ids(const std::vector<int32_t>& a, const std::vector<int32_t>& b) {
  return std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin();
}

int64_t tokens_of_messages(const Conversation& messages, size_t count,
                           const std::vector<int32_t>& ids, const RequestRules& rules,
                           const WorkLimits& limits) {
  const auto begin = messages.messages.begin();
  const Conversation head{.messages = {begin, begin + static_cast<std::ptrdiff_t>(count)},
                          .tools_json = messages.tools_json,
                          .variables_json = messages.variables_json,
                          .add_generation_prompt = false,
                          .continue_final_message = false};
  std::vector<int32_t> alone;
  const Refused refused = with_input(head, limits, [&](const ChatInput& input) {
    return read(input, &ChatTemplate::render, TextPosition::kStart, rules, &alone);
  });
  return refused ? 0 : common_ids(ids, alone);
}

std::optional<int32_t> find_answer_end(const Chat& chat, const Tokenizer& tokenizer) {
  if (chat.format == nullptr) return {};
  const std::vector<int32_t> ids = tokenizer.encode(chat.format->answer_end());
  if (ids.empty() || !tokenizer.is_special(ids.front())) return {};
  return ids.front();
}

}  // namespace recurve

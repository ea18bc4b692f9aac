#include "server/request/chat_prompt.h"

#include <algorithm>

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

Conversation first_messages(const Conversation& messages, size_t count) {
  const auto begin = messages.messages.begin();
  return {.messages = {begin, begin + static_cast<std::ptrdiff_t>(count)},
          .tools_json = messages.tools_json,
          .variables_json = messages.variables_json,
          .add_generation_prompt = false,
          .continue_final_message = false};
}

// What stands behind the first `begin` bytes.
RangedText rest_of(const RangedText& text, size_t begin) {
  RangedText rest{text.text.substr(begin), {}};
  for (const ByteRange& range : text.ranges) {
    if (range.end <= begin) continue;
    rest.ranges.push_back({std::max(range.begin, begin) - begin, range.end - begin});
  }
  return rest;
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

// How many of the ids stand in front of that message, about: what is behind it alone is read anew,
// however long the conversation is. 0 where the chat template does not write those before it alone.
int64_t tokens_before_message(const Conversation& messages, size_t index,
                              const std::vector<int32_t>& ids, const RequestRules& rules,
                              const WorkLimits& limits) {
  int64_t behind = 0;
  std::string alone;
  const auto write_head = [&](const ChatInput& head) -> Refused {
    alone = rules.chat.format->render(head).text;
    return {};
  };
  const auto count = [&](const ChatInput& all) -> Refused {
    const RangedText text = rules.chat.format->render(all);
    auto parts = static_cast<size_t>(std::ranges::mismatch(alone, text.text).in1 - alone.begin());
    while (parts > 0 && (text.text[parts] & 0xc0) == 0x80) --parts;  // within a character
    std::vector<int32_t> rest;
    const Refused refused =
        encode(rest_of(text, parts), TextPosition::kContinued, rules, limits, &rest);
    behind =
        std::mismatch(ids.rbegin(), ids.rend(), rest.rbegin(), rest.rend()).first - ids.rbegin();
    return refused;
  };
  Refused refused = with_input(first_messages(messages, index), limits, write_head);
  if (!refused) refused = with_input(messages, limits, count);
  return refused || behind == 0 ? 0 : static_cast<int64_t>(ids.size()) - behind;
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
  const Conversation head = first_messages(messages, count);
  std::vector<int32_t> alone;
  const Refused refused = with_input(head, limits, [&](const ChatInput& input) {
    return read(input, &ChatTemplate::render, TextPosition::kStart, rules, &alone);
  });
  return refused ? 0 : common_ids(ids, alone);
}

std::vector<int64_t> likely_places(const Conversation& messages, const std::vector<int32_t>& ids,
                                   const RequestRules& rules, const WorkLimits& limits) {
  const auto& all = messages.messages;
  const std::string& role = all.front().role;
  const bool has_system = role == "system" || role == "developer";
  std::vector<int64_t> places;
  if (all.size() > 1 && has_system) {
    places.push_back(tokens_of_messages(messages, 1, ids, rules, limits));
  }
  const auto question = std::ranges::find(all.rbegin(), all.rend(), "user", &ChatMessage::role);
  const auto index = static_cast<size_t>(all.rend() - question);  // of the one behind it
  if (index > (has_system ? 2 : 1)) {
    places.push_back(tokens_before_message(messages, index - 1, ids, rules, limits));
  }
  return places;
}

std::optional<int32_t> find_answer_end(const Chat& chat, const Tokenizer& tokenizer) {
  if (chat.format == nullptr) return {};
  const std::vector<int32_t> ids = tokenizer.encode(chat.format->answer_end());
  if (ids.empty() || !tokenizer.is_special(ids.front())) return {};
  return ids.front();
}

}  // namespace recurve

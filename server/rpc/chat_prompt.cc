#include "server/rpc/chat_prompt.h"

#include <algorithm>
#include <utility>

#include "server/rpc/status.h"

namespace recurve {
namespace {

using grpc::Status;

Conversation to_conversation(const v1::Messages& messages) {
  Conversation conversation{.messages = {},
                            .tools_json = messages.tools_json(),
                            .variables_json = messages.variables_json(),
                            .add_generation_prompt = messages.has_add_generation_prompt()
                                                         ? messages.add_generation_prompt()
                                                         : !messages.continue_final_message(),
                            .continue_final_message = messages.continue_final_message()};
  for (const v1::Messages::Message& message : messages.messages()) {
    ChatMessage& out = conversation.messages.emplace_back();
    out.role = message.role();
    if (message.has_content()) out.content = message.content();
    out.fields_json = message.fields_json();
  }
  return conversation;
}

Status check_messages(const v1::Messages& messages, const RequestRules& rules) {
  if (rules.chat.format == nullptr) return invalid("messages: {}", rules.chat.problem);
  if (messages.messages_size() == 0) {
    return invalid("messages must have at least one message, got none");
  }
  if (messages.continue_final_message() && messages.add_generation_prompt()) {
    return invalid("add_generation_prompt and continue_final_message must not both be true");
  }
  return {};
}

Status encode(const RangedText& text, TextPosition position, const RequestRules& rules,
              const WorkLimits& limits, std::vector<int32_t>* ids) {
  try {
    *ids = rules.tokenizer->encode(text, position, limits);
    return {};
  } catch (const TooManyTokens&) {
    return too_many_tokens(rules);
  }
}

using Write = RangedText (ChatTemplate::*)(const ChatInput&) const;

Status read(const ChatInput& input, Write write, TextPosition position, const RequestRules& rules,
            std::vector<int32_t>* ids) {
  try {
    return encode(((*rules.chat.format).*write)(input), position, rules, input.work, ids);
  } catch (const ChatError& error) {
    return invalid("messages: {}", error.what());
  }
}

// Parses the conversation once for all that is to be read of it; to_ids(input) reads.
template <typename ToIds>
Status with_input(const v1::Messages& messages, const WorkLimits& limits, const ToIds& to_ids) {
  try {
    return to_ids(ChatInput(to_conversation(messages), limits));
  } catch (const ChatError& error) {
    return invalid("messages: {}", error.what());
  }
}

// For a session, whose state must be one that later messages can go on from: as one that begins and
// as one that goes on, of which at least one must be possible.
Status read_session(const ChatInput& input, const RequestRules& rules, Request* request) {
  const Status start =
      read(input, &ChatTemplate::render_start, TextPosition::kStart, rules, &request->prompt.ids);
  PromptReading& continued = request->continued_prompt.emplace();
  const Status on = read(input, &ChatTemplate::render_continuation, TextPosition::kContinued, rules,
                         &continued.ids);
  continued.refusal = on.error_message();
  continued.replaces_pending = rules.tokens.eos;
  if (!continued.ids.empty() && rules.tokenizer->is_special(continued.ids.front())) {
    continued.replaces_pending.push_back(continued.ids.front());
  }
  if (!on.ok()) return start;
  request->prompt.refusal = start.error_message();
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

Status read_messages(const v1::Messages& messages, bool continued, const RequestRules& rules,
                     const WorkLimits& limits, std::vector<int32_t>* ids) {
  const Status status = check_messages(messages, rules);
  if (!status.ok()) return status;
  return with_input(messages, limits, [&](const ChatInput& input) {
    return continued ? read(input, &ChatTemplate::render_continuation, TextPosition::kContinued,
                            rules, ids)
                     : read(input, &ChatTemplate::render, TextPosition::kStart, rules, ids);
  });
}

Status read_messages(const v1::GenerateRequest& message, const RequestRules& rules,
                     const WorkLimits& limits, Request* request) {
  if (message.parse_special()) {
    return invalid("parse_special is for text: messages name control tokens by their roles only");
  }
  Status status = check_messages(message.messages(), rules);
  if (!status.ok()) return status;
  status = with_input(message.messages(), limits, [&](const ChatInput& input) {
    if (!message.session().empty()) return read_session(input, rules, request);
    return read(input, &ChatTemplate::render, TextPosition::kStart, rules, &request->prompt.ids);
  });
  if (!status.ok()) return status;
  end_with_turn(rules, &request->sampling);
  return {};
}

std::optional<int32_t> find_answer_end(const Chat& chat, const Tokenizer& tokenizer) {
  if (chat.format == nullptr) return {};
  const std::vector<int32_t> ids = tokenizer.encode(chat.format->answer_end());
  if (ids.empty() || !tokenizer.is_special(ids.front())) return {};
  return ids.front();
}

}  // namespace recurve

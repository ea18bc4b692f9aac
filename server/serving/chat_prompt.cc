#include "server/serving/chat_prompt.h"

#include <algorithm>

namespace recurve {
namespace {

Refused check_messages(const Conversation& messages, const ModelText& model) {
  const char* const field = messages.field;
  if (model.chat.format == nullptr) return invalid(field, "{}: {}", field, model.chat.problem);
  if (messages.messages.empty()) {
    return invalid(field, "{} must have at least one message, got none", field);
  }
  if (messages.continue_final_message && messages.add_generation_prompt) {
    return invalid("continue_final_message",
                   "add_generation_prompt and continue_final_message must not both be true");
  }
  return {};
}

Refused encode(const RangedText& text, TextPosition position, const ModelText& model,
               const WorkLimits& limits, std::vector<int32_t>* ids) {
  try {
    *ids = model.tokenizer->encode(text, position, limits);
    return {};
  } catch (const TooManyTokens&) {
    return too_many_tokens(model);
  }
}

using Render = RangedText (ChatTemplate::*)(const ChatInput&) const;

// Where the answer to this prompt begins. A message that is continued has begun its answer, unless
// it ends within the reasoning.
ReasoningStart start_after(std::string_view prompt, const ChatInput& input,
                           const ReasoningForm& form) {
  ReasoningStart start = reasoning_start_of(form, prompt);
  if (input.continue_final_message && start.phase != ReasoningStart::Phase::kInside) {
    start = {.phase = ReasoningStart::Phase::kOver};
  }
  return start;
}

// `reasoning`: set for the answer to this prompt; may be null.
Refused read(const ChatInput& input, Render render, TextPosition position, const ModelText& model,
             std::vector<int32_t>* ids, std::optional<ReasoningReading>* reasoning = nullptr) {
  try {
    const RangedText text = ((*model.chat.format).*render)(input);
    if (reasoning != nullptr && model.reasoning.form != nullptr) {
      reasoning->emplace(ReasoningReading{
          .rules = model.reasoning, .start = start_after(text.text, input, *model.reasoning.form)});
    }
    return encode(text, position, model, input.work, ids);
  } catch (const ChatError& error) {
    return invalid(input.field, "{}: {}", input.field, error.what());
  }
}

// Parses the conversation once, and calls to_ids(input).
template <typename ToIds>
Refused with_input(Conversation messages, const WorkLimits& limits, const ToIds& to_ids) {
  const char* const field = messages.field;
  try {
    return to_ids(ChatInput(std::move(messages), limits));
  } catch (const ChatError& error) {
    return invalid(field, "{}: {}", field, error.what());
  }
}

// Removes the first `begin` bytes.
void drop_front(size_t begin, RangedText* text) {
  text->text.erase(0, begin);
  std::vector<ByteRange> ranges;
  for (const ByteRange& range : text->ranges) {
    if (range.end <= begin) continue;
    ranges.push_back({std::max(range.begin, begin) - begin, range.end - begin});
  }
  text->ranges = std::move(ranges);
}

std::string sentence_of(const Refused& refused) { return refused ? refused->message : ""; }

// For a session, which later messages must be able to continue: both as its start and as its
// continuation; at least one must be possible.
Refused read_session(const ChatInput& input, const ModelText& model, ParsedRequest* parsed) {
  Request* request = &parsed->request;
  const Refused start = read(input, &ChatTemplate::render_start, TextPosition::kStart, model,
                             &request->prompt.ids, &parsed->reasoning);
  PromptReading& continued = request->continued_prompt.emplace();
  const Refused failed = read(input, &ChatTemplate::render_continuation, TextPosition::kContinued,
                              model, &continued.ids, &parsed->reasoning);
  continued.refusal = sentence_of(failed);
  continued.replaces_pending = model.tokens.eos;
  if (!continued.ids.empty() && model.tokenizer->is_special(continued.ids.front())) {
    continued.replaces_pending.push_back(continued.ids.front());
  }
  if (failed) return start;
  request->prompt.refusal = sentence_of(start);
  return {};
}

// About how many of the ids precede that message. Tokenizes only the messages after it, however
// long the conversation is. 0 if the chat template cannot render the messages before it alone.
int64_t tokens_before_message(const ChatInput& messages, size_t index,
                              const std::vector<int32_t>& ids, const ModelText& model) {
  std::vector<int32_t> rest;
  try {
    std::string alone = model.chat.format->render(messages.first(index)).text;
    RangedText text = model.chat.format->render(messages);
    auto parts = static_cast<size_t>(std::ranges::mismatch(alone, text.text).in1 - alone.begin());
    std::string().swap(alone);
    while (parts > 0 && (text.text[parts] & 0xc0) == 0x80) --parts;  // within a character
    drop_front(parts, &text);
    if (encode(text, TextPosition::kContinued, model, messages.work, &rest)) return 0;
  } catch (const ChatError&) {
    return 0;
  }
  const int64_t behind =
      std::mismatch(ids.rbegin(), ids.rend(), rest.rbegin(), rest.rend()).first - ids.rbegin();
  return behind == 0 ? 0 : static_cast<int64_t>(ids.size()) - behind;
}

// A model ends its answers with the token that its template writes after them, even if its config
// does not list it.
void end_with_turn(const ModelText& model, SamplingParams* sampling) {
  if (!model.answer_end || sampling->ignore_eos) return;
  const auto contains = [&](const std::vector<int32_t>& ids) {
    return std::find(ids.begin(), ids.end(), *model.answer_end) != ids.end();
  };
  if (contains(model.tokens.eos) || contains(sampling->stop_ids)) return;
  sampling->stop_ids.push_back(*model.answer_end);
}

}  // namespace

Refused read_messages(Conversation messages, bool continued, const ModelText& model,
                      const WorkLimits& limits, std::vector<int32_t>* ids) {
  if (Refused refused = check_messages(messages, model)) return refused;
  return with_input(std::move(messages), limits, [&](const ChatInput& input) {
    return continued ? read(input, &ChatTemplate::render_continuation, TextPosition::kContinued,
                            model, ids)
                     : read(input, &ChatTemplate::render, TextPosition::kStart, model, ids);
  });
}

Refused read_messages(Conversation messages, const ModelText& model, const WorkLimits& limits,
                      ParsedRequest* parsed, const std::function<Refused(const ChatInput&)>& then) {
  if (Refused refused = check_messages(messages, model)) return refused;
  return with_input(std::move(messages), limits, [&](const ChatInput& input) {
    Request* request = &parsed->request;
    Refused refused = !request->may_continue()
                          ? read(input, &ChatTemplate::render, TextPosition::kStart, model,
                                 &request->prompt.ids, &parsed->reasoning)
                          : read_session(input, model, parsed);
    if (refused) return refused;
    end_with_turn(model, &request->sampling);
    return then(input);
  });
}

int64_t common_ids(const std::vector<int32_t>& a, const std::vector<int32_t>& b) {
  return std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin();
}

int64_t tokens_of_messages(const ChatInput& messages, size_t count, const std::vector<int32_t>& ids,
                           const ModelText& model) {
  std::vector<int32_t> alone;
  const Refused refused =
      read(messages.first(count), &ChatTemplate::render, TextPosition::kStart, model, &alone);
  return refused ? 0 : common_ids(ids, alone);
}

std::vector<int64_t> likely_prefixes(const ChatInput& messages, const std::vector<int32_t>& ids,
                                     const ModelText& model) {
  std::vector<int64_t> prefixes;
  const bool has_system = messages.systems > 0;
  if (messages.sent.size() > 1 && has_system) {
    prefixes.push_back(tokens_of_messages(messages, 1, ids, model));
  }
  const size_t index = messages.after_last_user;
  if (index > (has_system ? 2 : 1)) {
    prefixes.push_back(tokens_before_message(messages, index - 1, ids, model));
  }
  return prefixes;
}

std::optional<int32_t> find_answer_end(const Chat& chat, const Tokenizer& tokenizer) {
  if (chat.format == nullptr) return {};
  const std::vector<int32_t> ids = tokenizer.encode(chat.format->answer_end());
  if (ids.empty() || !tokenizer.is_special(ids.front())) return {};
  return ids.front();
}

}  // namespace recurve

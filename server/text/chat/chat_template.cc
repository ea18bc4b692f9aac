#include "server/text/chat/chat_template.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "server/text/chat/chat_input.h"
#include "server/text/cut.h"

namespace recurve {
namespace {

using jinja::Origin;
using jinja::Text;
using jinja::Value;
using Messages = std::vector<Value>;

// The mark of transformers for the end of a final message to be continued. The space at its end
// shows whether the template trims the content.
constexpr std::string_view kFinalMark = "CONTINUE_FINAL_MESSAGE_TAG ";

std::tm local_time() {
  const std::time_t now = std::time(nullptr);
  std::tm time{};
  localtime_r(&now, &time);
  return time;
}

RangedText ranged(Text text) {
  RangedText out{std::move(text.bytes), {}};
  text.origins.for_each(0, out.text.size(), [&](size_t begin, size_t end, Origin origin) {
    if (origin == Origin::kTemplate) out.ranges.push_back({begin, end});
  });
  return out;
}

// The last run of bytes with that mark; empty if the template did not render the message.
std::optional<ByteRange> find_mark(const Text& text, Origin mark = Origin::kMark) {
  std::optional<ByteRange> last;
  text.origins.for_each(0, text.bytes.size(), [&](size_t begin, size_t end, Origin origin) {
    if (origin == mark) last = ByteRange{begin, end};
  });
  return last;
}

ByteRange require_mark(const Text& text, const char* what) {
  const auto mark = find_mark(text);
  if (!mark) throw ChatError(fmt::format("the chat template does not render {}", what));
  return *mark;
}

Value question() { return chat_message("user", Text("question", Origin::kMessage)); }
// An answer of which only the position matters.
Value answer() { return chat_message("assistant", Text("answer", Origin::kMessage)); }
// An answer that can be found in the rendered text.
Value marked_answer(Origin mark = Origin::kMark) {
  return chat_message("assistant", Text(kFinalMark, mark));
}

Messages joined(Messages first, const Messages& then) {
  first.insert(first.end(), then.begin(), then.end());
  return first;
}

// A message whose content is a list of text parts.
Value with_parts(std::string_view role, const std::vector<Text>& texts) {
  std::vector<Value> parts;
  for (const Text& text : texts) {
    jinja::Dict part;
    part.set(Text("type", Origin::kTemplate), Value::text("text"));
    part.set(Text("text", Origin::kTemplate), Value::text(text));
    parts.push_back(Value::dict(std::move(part)));
  }
  jinja::Dict message = *chat_message(role, {}).dict();
  message.set(Text("content", Origin::kTemplate), Value::list(std::move(parts)));
  return Value::dict(std::move(message));
}

// The same messages with the texts of parts as one string.
Messages with_strings(Messages messages) {
  for (Value& message : messages) {
    const Value* content = message.dict()->find("content");
    if (content == nullptr || content->list() == nullptr) continue;
    jinja::Dict changed = *message.dict();
    changed.set(Text("content", Origin::kTemplate), Value::text(joined_parts(*content->list())));
    message = Value::dict(std::move(changed));
  }
  return messages;
}

// An estimate, which a template seldom exceeds.
size_t likely_bytes(const Messages& messages) {
  constexpr size_t kAround = 64, kRest = 1024;
  size_t bytes = kRest;
  for (const Value& message : messages) {
    const Value* content = message.dict()->find("content");
    const bool is_text = content != nullptr && content->text() != nullptr;
    bytes += kAround + (is_text ? content->text()->bytes.size() : 0);
  }
  return bytes;
}

bool is_blank(std::string_view text) {
  return jinja::strip(Text(text, Origin::kTemplate), jinja::Side::kBoth).empty();
}

// Whether `text` is `head` followed by white space only.
bool extends(std::string_view text, std::string_view head) {
  return text.starts_with(head) && is_blank(text.substr(head.size()));
}

}  // namespace

// A rendered text in which one answer is marked.
struct ChatTemplate::Turn {
  std::string_view head() const { return std::string_view(text.bytes).substr(0, mark.begin); }
  std::string_view rest() const { return std::string_view(text.bytes).substr(mark.end); }

  Text text;
  ByteRange mark;
};

ChatTemplate::ChatTemplate(std::string_view text, std::string_view tools,
                           jinja::Template::Variables special_tokens)
    : special_tokens_(std::move(special_tokens)),
      template_(parsed(text)),
      tools_template_(tools.empty() ? std::nullopt : std::make_optional(parsed(tools))),
      usual_head_(
          stable_head({{.messages = {{.role = "user", .content = "question"}}}}, local_time())) {}

ChatTemplate::ParsedTemplate ChatTemplate::parsed(std::string_view text) const {
  ParsedTemplate form{jinja::Template(text), false};
  const auto rendered = [&](const Value& message) -> std::optional<std::string> {
    const jinja::Template::Variables own = {{"messages", Value::list({message})},
                                            {"add_generation_prompt", Value(true)}};
    try {
      return form.text.render({&own, &special_tokens_}, local_time(), {}, {}).bytes;
    } catch (const jinja::Error&) {
      return {};
    }
  };
  const Text content("question", Origin::kMessage);
  const auto expected = rendered(chat_message("user", content));
  form.takes_parts = expected && expected == rendered(with_parts("user", {content}));
  return form;
}

Text ChatTemplate::render_messages(const ChatInput& input, const Messages& messages, bool prompt,
                                   const std::tm& now) const {
  const ParsedTemplate& used = tools_template_ && input.has_tools ? *tools_template_ : template_;
  const Messages given = used.takes_parts ? messages : with_strings(messages);
  const jinja::Template::Variables own = {{"messages", Value::list(given)},
                                          {"tools", input.tools},
                                          {"documents", Value(jinja::None{})},
                                          {"add_generation_prompt", Value(prompt)}};
  ++renderings_;
  try {
    return used.text.render({&own, &input.variables, &special_tokens_}, now,
                            {.likely_bytes = likely_bytes(given)}, input.work);
  } catch (const jinja::Error& error) {
    throw ChatError(fmt::format("chat template, {}", cut(error.what(), kMostRepeated)));
  }
}

ChatTemplate::Turn ChatTemplate::render_turn(const ChatInput& input, const Messages& messages,
                                             bool prompt, const std::tm& now) const {
  Text text = render_messages(input, messages, prompt, now);
  const ByteRange mark = require_mark(text, "an earlier answer");
  return {std::move(text), mark};
}

RangedText ChatTemplate::render(const ChatInput& input) const {
  const std::tm now = local_time();
  if (!input.continue_final_message) {
    return ranged(render_messages(input, input.messages, input.add_generation_prompt, now));
  }
  Messages messages = input.messages;
  messages.back() = with_mark(messages.back(), kFinalMark);
  const Text text = render_messages(input, messages, input.add_generation_prompt, now);
  const auto mark = require_mark(text, "the content of the final message");
  // If the template trims the content, transformers also removes a space that the template adds.
  const bool trims = !std::string_view(text.bytes).substr(mark.begin).starts_with(kFinalMark);
  const Text head = text.part(0, mark.begin);
  return ranged(trims ? jinja::strip(head, jinja::Side::kRight) : head);
}

RangedText ChatTemplate::render_start(const ChatInput& input) const {
  if (!input.add_generation_prompt) return render(input);
  const std::tm now = local_time();
  Text text = render_messages(input, input.messages, true, now);
  check_extensible(input, input.messages, text.bytes, now);
  return ranged(std::move(text));
}

RangedText ChatTemplate::render_continuation(const ChatInput& input) const {
  if (input.continue_final_message) {
    throw ChatError("continue_final_message is for a conversation that begins with the request");
  }
  const std::tm now = local_time();
  const Turn turn = render_turn(input, joined({question(), marked_answer()}, input.messages),
                                input.add_generation_prompt, now);
  check_stable_head(input, turn, now);
  check_stable_rest(input, turn, now);
  return ranged(turn.text.part(turn.mark.end, turn.text.bytes.size()));
}

// The text before the first answer, if it is the same with and without the answer.
std::optional<std::string> ChatTemplate::stable_head(const ChatInput& input,
                                                     const std::tm& now) const {
  try {
    const Turn answered = render_turn(input, {question(), marked_answer()}, false, now);
    const Text asked = render_messages(input, {question()}, true, now);
    if (extends(answered.head(), asked.bytes)) return std::string(answered.head());
  } catch (const ChatError&) {
  }
  return {};
}

// The text before the answer must not depend on the messages that follow. For a conversation
// without other input this was checked at load time; a template that prints the time may have
// changed since.
void ChatTemplate::check_stable_head(const ChatInput& input, const Turn& turn,
                                     const std::tm& now) const {
  if (input.plain() && usual_head_ == turn.head()) return;
  if (stable_head(input, now) == turn.head()) return;
  throw ChatError(
      "the chat template renders earlier turns differently when others follow, so a session cannot "
      "continue with messages: send text instead");
}

// These messages must be rendered in the same way after any number of turns, whatever follows.
void ChatTemplate::check_stable_rest(const ChatInput& input, const Turn& turn,
                                     const std::tm& now) const {
  if (is_position_independent(input, turn, now)) return;
  const Messages messages =
      joined({question(), answer(), question(), marked_answer()}, input.messages);
  if (render_turn(input, messages, input.add_generation_prompt, now).rest() != turn.rest()) {
    throw ChatError(
        "the chat template renders messages differently depending on the number of earlier ones, "
        "so a "
        "session cannot continue with messages: send text instead");
  }
  if (!input.add_generation_prompt) return;
  const Messages whole = joined({question(), answer()}, input.messages);
  check_extensible(input, whole, render_messages(input, whole, true, now).bytes, now);
}

// Checks both by one rendering, which suffices for most templates. False proves nothing.
bool ChatTemplate::is_position_independent(const ChatInput& input, const Turn& turn,
                                           const std::tm& now) const {
  if (!input.add_generation_prompt) return false;
  Messages messages = joined({question(), answer(), question(), marked_answer()}, input.messages);
  messages.push_back(marked_answer(Origin::kMark2));
  messages.push_back(question());
  try {
    const Text text = render_messages(input, messages, true, now);
    const auto before = find_mark(text), after = find_mark(text, Origin::kMark2);
    if (!before || !after || after->begin < before->end) return false;
    const std::string_view all = text.bytes;
    return all.starts_with(turn.head()) &&
           extends(all.substr(before->end, after->begin - before->end), turn.rest());
  } catch (const ChatError&) {
    return false;
  }
}

// `text`: the messages and the generation prompt. It must not change when an answer follows.
void ChatTemplate::check_extensible(const ChatInput& input, const Messages& messages,
                                    std::string_view text, const std::tm& now) const {
  const Messages later = joined(messages, {marked_answer(), question()});
  Text long_text;
  try {
    long_text = render_messages(input, later, true, now);
  } catch (const ChatError&) {
    return;  // later messages that cannot be rendered are refused then
  }
  const auto mark = require_mark(long_text, "the answer to these messages");
  if (extends(std::string_view(long_text.bytes).substr(0, mark.begin), text)) return;
  throw ChatError(
      "the chat template renders these messages differently when others follow (it moves a system "
      "message or tools to the last turn), so a session cannot begin with them: put their text "
      "into a "
      "user's message, or send text");
}

RangedText ChatTemplate::answer_end() const {
  try {
    const ChatInput input({.messages = {{.role = "user", .content = "question"}}});
    const Turn turn = render_turn(input, {question(), marked_answer()}, false, local_time());
    return ranged(turn.text.part(turn.mark.end, turn.text.bytes.size()));
  } catch (const ChatError&) {
    return {};
  }
}

}  // namespace recurve

#include "server/text/chat/chat_template.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "server/text/chat/chat_rules.h"
#include "server/text/cut.h"

namespace recurve {
namespace {

using jinja::Origin;
using jinja::Text;
using jinja::Value;
using Messages = std::vector<Value>;

// What transformers marks the place with where a final message is to be continued; the space shows
// whether the template trims.
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

// The last run of bytes with that mark; nothing where the template did not write the message.
std::optional<jinja::ByteSpan> find_mark(const Text& text, Origin mark = Origin::kMark) {
  std::optional<jinja::ByteSpan> last;
  text.origins.for_each(0, text.bytes.size(), [&](size_t begin, size_t end, Origin origin) {
    if (origin == mark) last = jinja::ByteSpan{begin, end};
  });
  return last;
}

jinja::ByteSpan require_mark(const Text& text, const char* what) {
  const auto mark = find_mark(text);
  if (!mark) throw ChatError(fmt::format("the chat template does not write {}", what));
  return *mark;
}

Value question() { return chat_message("user", Text("question", Origin::kMessage)); }
// An answer of which nothing but the place matters.
Value answer() { return chat_message("assistant", Text("answer", Origin::kMessage)); }
// To be found again.
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

// What a template writes around each message is seldom more than this.
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

// `text` begins with `head`, but for white space at the end of `head`'s place in it.
bool goes_on_from(std::string_view text, std::string_view head) {
  return text.starts_with(head) && is_blank(text.substr(head.size()));
}

}  // namespace

// A text in which one answer is marked.
struct ChatTemplate::Turn {
  std::string_view head() const { return std::string_view(text.bytes).substr(0, mark.begin); }
  std::string_view rest() const { return std::string_view(text.bytes).substr(mark.end); }

  Text text;
  jinja::ByteSpan mark;
};

ChatTemplate::ChatTemplate(std::string_view text, std::string_view tools,
                           jinja::Template::Variables special_tokens)
    : special_tokens_(std::move(special_tokens)),
      form_(form_of(text)),
      tools_form_(tools.empty() ? std::nullopt : std::make_optional(form_of(tools))),
      usual_head_(
          stable_head({{.messages = {{.role = "user", .content = "question"}}}}, local_time())) {}

ChatTemplate::Form ChatTemplate::form_of(std::string_view text) const {
  Form form{jinja::Template(text), false};
  const auto writes = [&](const Value& message) -> std::optional<std::string> {
    const jinja::Template::Variables own = {{"messages", Value::list({message})},
                                            {"add_generation_prompt", Value(true)}};
    try {
      return form.text.render({&own, &special_tokens_}, local_time(), {}, {}).bytes;
    } catch (const jinja::Error&) {
      return {};
    }
  };
  const Text said("question", Origin::kMessage);
  const auto wanted = writes(chat_message("user", said));
  form.takes_parts = wanted && wanted == writes(with_parts("user", {said}));
  return form;
}

Text ChatTemplate::write(const ChatInput& input, const Messages& messages, bool prompt,
                         const std::tm& now) const {
  const Form& used = tools_form_ && input.has_tools ? *tools_form_ : form_;
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

ChatTemplate::Turn ChatTemplate::write_turn(const ChatInput& input, const Messages& messages,
                                            bool prompt, const std::tm& now) const {
  Text text = write(input, messages, prompt, now);
  const jinja::ByteSpan mark = require_mark(text, "an earlier answer");
  return {std::move(text), mark};
}

RangedText ChatTemplate::render(const ChatInput& input) const {
  const std::tm now = local_time();
  if (!input.continue_final_message) {
    return ranged(write(input, input.messages, input.add_generation_prompt, now));
  }
  Messages messages = input.messages;
  messages.back() = with_mark(messages.back(), kFinalMark);
  const Text text = write(input, messages, input.add_generation_prompt, now);
  const auto mark = require_mark(text, "the content of the final message");
  // Where the template's own space follows a content that it trims, transformers takes it for the
  // mark's.
  const bool trims = !std::string_view(text.bytes).substr(mark.begin).starts_with(kFinalMark);
  const Text head = text.part(0, mark.begin);
  return ranged(trims ? jinja::strip(head, jinja::Side::kRight) : head);
}

RangedText ChatTemplate::render_start(const ChatInput& input) const {
  if (!input.add_generation_prompt) return render(input);
  const std::tm now = local_time();
  Text text = write(input, input.messages, true, now);
  check_goes_on(input, input.messages, text.bytes, now);
  return ranged(std::move(text));
}

RangedText ChatTemplate::render_continuation(const ChatInput& input) const {
  if (input.continue_final_message) {
    throw ChatError("continue_final_message is for a conversation that begins with the request");
  }
  const std::tm now = local_time();
  const Turn turn = write_turn(input, joined({question(), marked_answer()}, input.messages),
                               input.add_generation_prompt, now);
  check_head(input, turn, now);
  check_rest(input, turn, now);
  return ranged(turn.text.part(turn.mark.end, turn.text.bytes.size()));
}

// The text up to a first answer, where it is the same while the answer is awaited and when it is
// there.
std::optional<std::string> ChatTemplate::stable_head(const ChatInput& input,
                                                     const std::tm& now) const {
  try {
    const Turn answered = write_turn(input, {question(), marked_answer()}, false, now);
    const Text asked = write(input, {question()}, true, now);
    if (goes_on_from(answered.head(), asked.bytes)) return std::string(answered.head());
  } catch (const ChatError&) {
  }
  return {};
}

// The head must be the same when these messages follow it. What the template alone decides has been
// looked at once; a template that tells the time may have changed its text since.
void ChatTemplate::check_head(const ChatInput& input, const Turn& turn, const std::tm& now) const {
  if (input.plain() && usual_head_ == turn.head()) return;
  if (stable_head(input, now) == turn.head()) return;
  throw ChatError(
      "the chat template writes earlier turns differently once others follow, so a session cannot "
      "go on with messages: send text instead");
}

// These messages are written in the same way however many turns came before, and whatever follows.
void ChatTemplate::check_rest(const ChatInput& input, const Turn& turn, const std::tm& now) const {
  if (stays_in_place(input, turn, now)) return;
  const Messages messages =
      joined({question(), answer(), question(), marked_answer()}, input.messages);
  if (write_turn(input, messages, input.add_generation_prompt, now).rest() != turn.rest()) {
    throw ChatError(
        "the chat template writes messages differently depending on how many came before, so a "
        "session cannot go on with messages: send text instead");
  }
  if (!input.add_generation_prompt) return;
  const Messages whole = joined({question(), answer()}, input.messages);
  check_goes_on(input, whole, write(input, whole, true, now).bytes, now);
}

// Asks both at once, which is all there is to do for most templates: false proves nothing.
bool ChatTemplate::stays_in_place(const ChatInput& input, const Turn& turn,
                                  const std::tm& now) const {
  if (!input.add_generation_prompt) return false;
  Messages messages = joined({question(), answer(), question(), marked_answer()}, input.messages);
  messages.push_back(marked_answer(Origin::kMark2));
  messages.push_back(question());
  try {
    const Text text = write(input, messages, true, now);
    const auto before = find_mark(text), behind = find_mark(text, Origin::kMark2);
    if (!before || !behind || behind->begin < before->end) return false;
    const std::string_view all = text.bytes;
    return all.starts_with(turn.head()) &&
           goes_on_from(all.substr(before->end, behind->begin - before->end), turn.rest());
  } catch (const ChatError&) {
    return false;
  }
}

// `text`: of the messages, with the generation prompt.
void ChatTemplate::check_goes_on(const ChatInput& input, const Messages& messages,
                                 std::string_view text, const std::tm& now) const {
  const Messages later = joined(messages, {marked_answer(), question()});
  Text long_text;
  try {
    long_text = write(input, later, true, now);
  } catch (const ChatError&) {
    return;  // whoever sends such messages later will be told
  }
  const auto mark = require_mark(long_text, "the answer to these messages");
  if (goes_on_from(std::string_view(long_text.bytes).substr(0, mark.begin), text)) return;
  throw ChatError(
      "the chat template writes these messages differently once others follow (a system message or "
      "tools that move to the last turn), so a session cannot begin with them: put what they say "
      "into a user's message, or send text");
}

RangedText ChatTemplate::answer_end() const {
  try {
    const ChatInput input({.messages = {{.role = "user", .content = "question"}}});
    const Turn turn = write_turn(input, {question(), marked_answer()}, false, local_time());
    return ranged(turn.text.part(turn.mark.end, turn.text.bytes.size()));
  } catch (const ChatError&) {
    return {};
  }
}

}  // namespace recurve

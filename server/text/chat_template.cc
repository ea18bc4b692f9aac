#include "server/text/chat_template.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "server/text/jinja/json_parser.h"

namespace recurve {
namespace {

using jinja::Origin;
using jinja::Text;
using jinja::Value;

constexpr size_t kMaxRole = 64;
// As transformers marks the place where a final message is to be continued; the space shows whether
// the template trims.
constexpr std::string_view kFinalMark = "CONTINUE_FINAL_MESSAGE_TAG ";
// What stands for an answer where nothing but its place matters.
constexpr std::string_view kAnswer = "answer";

std::tm local_time() {
  const std::time_t now = std::time(nullptr);
  std::tm time{};
  localtime_r(&now, &time);
  return time;
}

void check_role(const std::string& role) {
  const bool valid =
      !role.empty() && role.size() <= kMaxRole && std::all_of(role.begin(), role.end(), [](char c) {
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
               c == '_' || c == '-';
      });
  if (!valid) throw ChatError(fmt::format("role must be 1 to {} of [A-Za-z0-9_-]", kMaxRole));
}

Value parsed(const std::string& json, const char* field) {
  try {
    return jinja::parse_json(json, Origin::kMessage);
  } catch (const jinja::Error& error) {
    throw ChatError(fmt::format("{} is refused: {}", field, error.what()));
  }
}

Value parsed_dict(const std::string& json, const char* field) {
  Value value = parsed(json, field);
  if (value.dict() != nullptr) return value;
  throw ChatError(fmt::format("{} must be a JSON object, got {}", field, type_name(value)));
}

// Fields that are null are left out, as transformers does.
Value message_value(const ChatMessage& message, std::string_view mark) {
  check_role(message.role);
  jinja::Dict dict;
  dict.set(Text("role", Origin::kTemplate), Value::text(message.role));
  if (message.content) {
    Text content(*message.content, Origin::kMessage);
    content.append(mark, Origin::kMark);
    dict.set(Text("content", Origin::kTemplate), Value::text(std::move(content)));
  }
  if (!message.fields_json.empty()) {
    const Value fields = parsed_dict(message.fields_json, "fields_json");
    for (const auto& [name, value] : fields.dict()->entries()) {
      if (dict.find(name.bytes) != nullptr) {
        throw ChatError(fmt::format("fields_json has '{}', which is a field already", name.bytes));
      }
      if (!value.is_none()) dict.set(name, value);
    }
  }
  return Value::dict(std::move(dict));
}

Value tools_value(const std::string& json) {
  if (json.empty()) return Value(jinja::None{});
  Value tools = parsed(json, "tools_json");
  if (tools.list() != nullptr) return tools;
  throw ChatError(fmt::format("tools_json must be a JSON array, got {}", type_name(tools)));
}

RangedText ranged(Text text) {
  RangedText out{std::move(text.bytes), {}};
  const auto trusted = static_cast<char>(Origin::kTemplate);
  for (size_t at = text.origins.find(trusted); at != std::string::npos;) {
    const size_t end = std::min(text.origins.find_first_not_of(trusted, at), text.origins.size());
    out.ranges.push_back({at, end});
    at = text.origins.find(trusted, end);
  }
  return out;
}

// The last run of marked bytes; nothing where the template did not write the message.
std::optional<jinja::ByteSpan> find_mark(const Text& text) {
  const auto mark = static_cast<char>(Origin::kMark);
  const size_t last = text.origins.rfind(mark);
  if (last == std::string::npos) return {};
  const size_t before = text.origins.find_last_not_of(mark, last);
  return jinja::ByteSpan{before == std::string::npos ? 0 : before + 1, last + 1};
}

jinja::ByteSpan require_mark(const Text& text, const char* what) {
  const auto mark = find_mark(text);
  if (!mark) throw ChatError(fmt::format("the chat template does not write {}", what));
  return *mark;
}

// A conversation of so many answered questions that goes on with `then`.
Conversation after_turns(int turns, const Conversation& then) {
  Conversation whole = then;
  whole.messages.clear();
  for (int i = 0; i < turns; ++i) {
    whole.messages.push_back({.role = "user", .content = "question"});
    whole.messages.push_back({.role = "assistant", .content = ""});
  }
  whole.messages.back().content = "";
  for (size_t i = 1; i + 1 < whole.messages.size(); i += 2) whole.messages[i].content = kAnswer;
  whole.messages.insert(whole.messages.end(), then.messages.begin(), then.messages.end());
  return whole;
}

bool is_blank(std::string_view text) {
  return jinja::strip(Text(text, Origin::kTemplate), jinja::Side::kBoth).empty();
}

// `text` begins with `head`, but for white space at the end of `head`'s place in it.
bool goes_on_from(std::string_view text, std::string_view head) {
  return text.starts_with(head) && is_blank(text.substr(head.size()));
}

}  // namespace

ChatTemplate::ChatTemplate(std::string_view text, std::string_view tools,
                           jinja::Template::Variables special_tokens)
    : template_(text),
      tools_template_(tools.empty() ? std::nullopt : std::make_optional<jinja::Template>(tools)),
      special_tokens_(std::move(special_tokens)) {}

Text ChatTemplate::write(const Conversation& conversation, std::tm now) const {
  return write_marked(conversation, SIZE_MAX, now);
}

Text ChatTemplate::write_marked(const Conversation& conversation, size_t marked,
                                std::tm now) const {
  if (conversation.messages.empty()) throw ChatError("there are no messages");
  jinja::Template::Variables variables = special_tokens_;
  std::vector<Value> messages;
  for (size_t i = 0; i < conversation.messages.size(); ++i) {
    messages.push_back(message_value(conversation.messages[i], i == marked ? kFinalMark : ""));
  }
  if (!conversation.variables_json.empty()) {
    const Value more = parsed_dict(conversation.variables_json, "variables_json");
    for (const auto& [name, value] : more.dict()->entries()) variables[name.bytes] = value;
  }
  variables["messages"] = Value::list(std::move(messages));
  variables["tools"] = tools_value(conversation.tools_json);
  variables["documents"] = Value(jinja::None{});
  variables["add_generation_prompt"] = Value(conversation.add_generation_prompt);
  const bool with_tools = tools_template_ && !conversation.tools_json.empty();
  try {
    return (with_tools ? *tools_template_ : template_).render(variables, now);
  } catch (const jinja::Error& error) {
    throw ChatError(fmt::format("chat template, {}", error.what()));
  }
}

RangedText ChatTemplate::render(const Conversation& conversation) const {
  if (!conversation.continue_final_message) return ranged(write(conversation, local_time()));
  if (conversation.messages.empty() || !conversation.messages.back().content) {
    throw ChatError("the final message has no content to continue");
  }
  const Text text = write_marked(conversation, conversation.messages.size() - 1, local_time());
  const auto mark = require_mark(text, "the content of the final message");
  const bool trims = mark.end - mark.begin < kFinalMark.size();
  const Text head = text.part(0, mark.begin);
  return ranged(trims ? jinja::strip(head, jinja::Side::kRight) : head);
}

// Behind the content of message `marked`.
Text ChatTemplate::rest_behind(const Conversation& conversation, size_t marked, std::tm now) const {
  const Text text = write_marked(conversation, marked, now);
  return text.part(require_mark(text, "an earlier answer").end, text.bytes.size());
}

RangedText ChatTemplate::render_continuation(const Conversation& conversation) const {
  if (conversation.continue_final_message) {
    throw ChatError("continue_final_message is for a conversation that begins with the request");
  }
  const std::tm now = local_time();
  check_stable(conversation, now);
  const Text rest = rest_behind(after_turns(1, conversation), 1, now);
  if (rest.bytes != rest_behind(after_turns(2, conversation), 3, now).bytes) {
    throw ChatError(
        "the chat template writes messages differently depending on how many came before, so a "
        "session cannot go on with messages: send text instead");
  }
  return ranged(rest);
}

// The text up to the answer is the same while it is awaited, when it is there, and when others
// follow it.
void ChatTemplate::check_stable(const Conversation& conversation, std::tm now) const {
  const Conversation whole = after_turns(1, conversation);
  Conversation answered = whole, asked = whole;
  answered.messages.resize(2);
  answered.add_generation_prompt = false;
  asked.messages.resize(1);
  asked.add_generation_prompt = true;
  const Text long_text = write_marked(whole, 1, now), short_text = write_marked(answered, 1, now);
  const auto in_long = require_mark(long_text, "an earlier answer");
  const auto in_short = require_mark(short_text, "an answer");
  const std::string head = long_text.bytes.substr(0, in_long.begin);
  const bool stays = head == short_text.bytes.substr(0, in_short.begin);
  if (stays && goes_on_from(head, write(asked, now).bytes)) return;
  throw ChatError(
      "the chat template writes earlier turns differently once others follow, so a session cannot "
      "go on with messages: send text instead");
}

void ChatTemplate::check_goes_on(const Conversation& conversation, bool continues) const {
  const auto& messages = conversation.messages;
  if (!conversation.add_generation_prompt || messages.empty()) return;
  const std::tm now = local_time();
  const Conversation whole = continues ? after_turns(1, conversation) : conversation;
  Conversation later = whole;
  later.messages.push_back({.role = "assistant", .content = ""});
  const size_t answer = later.messages.size() - 1;
  later.messages.push_back({.role = "user", .content = "question"});
  Text text;
  try {
    text = write_marked(later, answer, now);
  } catch (const ChatError&) {
    return;  // whoever sends such messages later will be told
  }
  const auto mark = require_mark(text, "the answer to these messages");
  if (goes_on_from(std::string_view(text.bytes).substr(0, mark.begin), write(whole, now).bytes)) {
    return;
  }
  throw ChatError(
      "the chat template writes these messages differently once others follow (a system message or "
      "tools that move to the last turn), so a session cannot begin with them: put what they say "
      "into a user's message, or send text");
}

RangedText ChatTemplate::answer_end() const {
  try {
    Conversation answered = after_turns(1, {});
    answered.add_generation_prompt = false;
    return ranged(rest_behind(answered, 1, local_time()));
  } catch (const ChatError&) {
    return {};
  }
}

}  // namespace recurve

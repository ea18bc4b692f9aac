#include "server/text/chat/chat_input.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "server/text/cut.h"
#include "server/text/jinja/json.h"
#include "server/text/json/client_json.h"

namespace recurve {
namespace {

using jinja::Dict;
using jinja::Origin;
using jinja::Text;
using jinja::Value;

constexpr size_t kMaxRole = 64;

Text name(std::string_view key) { return Text(key, Origin::kTemplate); }

void check_role(const std::string& role) {
  const bool valid =
      !role.empty() && role.size() <= kMaxRole && std::all_of(role.begin(), role.end(), [](char c) {
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
               c == '_' || c == '-';
      });
  if (!valid) throw ChatError(fmt::format("role must be 1 to {} of [A-Za-z0-9_-]", kMaxRole));
}

Value parsed(std::string json, const char* field, jinja::JsonBudget& budget) {
  try {
    return jinja::parse_json(json, Origin::kMessage, budget);
  } catch (const jinja::Error& error) {
    throw ChatError(fmt::format("{} is refused: {}", field, cut(error.what(), kMostRepeated)));
  }
}

Value parsed_dict(std::string json, const char* field, jinja::JsonBudget& budget) {
  Value value = parsed(std::move(json), field, budget);
  if (value.dict() != nullptr) return value;
  throw ChatError(fmt::format("{} must be a JSON object, got {}", field, type_name(value)));
}

// Templates and clients use different names for an answer's reasoning. As in transformers, the
// first two names get the reasoning that has any of them.
Dict with_reasoning(Dict message) {
  const Value* reasoning = nullptr;
  for (const char* key : {"reasoning_content", "thinking", "reasoning"}) {
    if (reasoning == nullptr) reasoning = message.find(key);
  }
  if (reasoning == nullptr) return message;
  Dict out;
  out.set(name("thinking"), *reasoning);
  for (const auto& [key, value] : message.entries()) out.set(key, value);
  out.set(name("reasoning_content"), *reasoning);
  return out;
}

// OpenAI's name for the role system, which templates do not know.
bool is_developer(const ChatMessage& message) { return message.role == "developer"; }

// Omits fields that are null, like transformers.
Value message_value(ChatMessage message, jinja::JsonBudget& budget) {
  check_role(message.role);
  Dict dict;
  dict.set(name("role"), Value::text(is_developer(message) ? "system" : message.role));
  if (message.content) {
    dict.set(name("content"),
             Value::text(Text::take(*std::move(message.content), Origin::kMessage)));
  }
  if (message.fields_json.empty()) return Value::dict(std::move(dict));
  const Value fields = parsed_dict(std::move(message.fields_json), "fields_json", budget);
  for (const auto& [key, value] : fields.dict()->entries()) {
    if (dict.find(key.bytes) != nullptr) {
      throw ChatError(
          fmt::format("fields_json has '{}', which is a field already", cut(key.bytes)));
    }
    if (!value.is_none()) dict.set(key, value);
  }
  return Value::dict(with_reasoning(std::move(dict)));
}

Value tools_value(std::string json, jinja::JsonBudget& budget) {
  if (json.empty()) return Value(jinja::None{});
  Value tools = parsed(std::move(json), "tools_json", budget);
  if (tools.list() != nullptr) return tools;
  throw ChatError(fmt::format("tools_json must be a JSON array, got {}", type_name(tools)));
}

Dict with_field(const Dict& dict, std::string_view key, Value value) {
  Dict changed = dict;
  changed.set(name(key), std::move(value));
  return changed;
}

Value marked(const Text& text, std::string_view mark) {
  Text out = text;
  out.append(mark, Origin::kMark);
  return Value::text(std::move(out));
}

// The parts of a content with the mark after the last text; empty if there is no text.
std::optional<Value> marked_parts(const jinja::List& parts, std::string_view mark) {
  std::vector<Value> items = parts.items;
  for (size_t i = items.size(); i-- > 0;) {
    const Dict* part = items[i].dict();
    const Value* text = part == nullptr ? nullptr : part->find("text");
    if (text == nullptr || text->text() == nullptr) continue;
    items[i] = Value::dict(with_field(*part, "text", marked(*text->text(), mark)));
    return Value::list(std::move(items));
  }
  return {};
}

}  // namespace

size_t bytes_of(const Conversation& conversation) {
  size_t bytes = conversation.tools_json.size() + conversation.variables_json.size();
  for (const ChatMessage& message : conversation.messages) {
    bytes += message.content ? message.content->size() : 0;
    bytes += message.role.size() + message.fields_json.size();
  }
  return bytes;
}

ChatInput::ChatInput(Conversation conversation, const WorkLimits& limits)
    : has_tools(!conversation.tools_json.empty()),
      add_generation_prompt(conversation.add_generation_prompt),
      continue_final_message(conversation.continue_final_message),
      field(conversation.field),
      work(limits) {
  if (conversation.messages.empty()) throw ChatError("there are no messages");
  const size_t bytes = bytes_of(conversation), most = most_messages(bytes);
  if (conversation.messages.size() > most) {
    throw ChatError(fmt::format("there are {} messages, the limit is {} for a total of {} bytes",
                                conversation.messages.size(), most, bytes));
  }
  jinja::JsonBudget budget{
      .most = most_values(bytes), .used = conversation.messages.size(), .work = work};
  for (ChatMessage& message : conversation.messages) {
    const size_t index = sent.size();
    const bool of_developer = is_developer(message);
    if (systems == index && (of_developer || message.role == "system")) ++systems;
    if (systems > index && of_developer) first_developer = std::min(first_developer, index);
    if (message.role == "user") after_last_user = index + 1;
    sent.push_back(message_value(std::move(message), budget));
    check_message(sent.back(), index, budget);
  }
  merge_systems(sent.size());
  tools = tools_value(std::move(conversation.tools_json), budget);
  if (conversation.thinking) {
    for (const char* known : {"enable_thinking", "thinking"}) {
      variables[known] = Value(*conversation.thinking);
    }
  }
  if (!conversation.effort.empty()) {
    variables["reasoning_effort"] =
        Value::text(Text::take(std::move(conversation.effort), Origin::kMessage));
  }
  if (conversation.variables_json.empty()) return;
  const Value more = parsed_dict(std::move(conversation.variables_json), "variables_json", budget);
  for (const auto& [key, value] : more.dict()->entries()) variables[key.bytes] = value;
}

// Sets `messages` to the first `count` of `sent`.
void ChatInput::merge_systems(size_t count) {
  messages.assign(sent.begin(), sent.begin() + static_cast<std::ptrdiff_t>(count));
  const size_t merged = std::min(systems, count);
  if (merged > 1 && first_developer < merged) merge_first(messages, merged);
}

ChatInput ChatInput::first(size_t count) const {
  ChatInput head = *this;
  head.merge_systems(count);
  head.add_generation_prompt = head.continue_final_message = false;
  return head;
}

Value chat_message(std::string_view role, Text content) {
  Dict dict;
  dict.set(name("role"), Value::text(role));
  dict.set(name("content"), Value::text(std::move(content)));
  return Value::dict(std::move(dict));
}

Value with_mark(const Value& message, std::string_view mark) {
  const Value* content = message.dict()->find("content");
  std::optional<Value> with;
  if (content != nullptr && content->text() != nullptr) with = marked(*content->text(), mark);
  if (content != nullptr && content->list() != nullptr) with = marked_parts(*content->list(), mark);
  if (!with) throw ChatError("the final message has no content to continue");
  return Value::dict(with_field(*message.dict(), "content", std::move(*with)));
}

}  // namespace recurve


#include <fmt/format.h>

#include <optional>
#include <utility>
#include <vector>

#include "server/text/chat/chat_input.h"
#include "server/text/json/json_fields.h"

namespace recurve {
namespace {

using jinja::Dict;
using jinja::Origin;
using jinja::Text;
using jinja::Value;

std::string_view string_in(const Dict& dict, std::string_view key) {
  const Value* value = dict.find(key);
  return value == nullptr || value->text() == nullptr ? std::string_view() : value->text()->bytes;
}

void check_parts(const jinja::List& parts, size_t index) {
  if (parts.items.empty()) {
    throw ChatError(fmt::format("[{}].content must have a part, got an empty list", index));
  }
  for (size_t p = 0; p < parts.items.size(); ++p) {
    const Dict* part = parts.items[p].dict();
    const std::string_view type = part == nullptr ? std::string_view() : string_in(*part, "type");
    if (type != "text") {
      throw ChatError(fmt::format("[{}].content[{}] must be of type \"text\", got {}", index, p,
                                  type.empty() ? "none" : quote(type)));
    }
    const Value* text = part->find("text");
    if (text == nullptr || text->text() == nullptr) {
      throw ChatError(fmt::format("[{}].content[{}].text must be a string", index, p));
    }
  }
}

void check_content(const Value* content, std::string_view role, size_t index) {
  if (content == nullptr || content->text() != nullptr) return;
  if (content->list() != nullptr) return check_parts(*content->list(), index);
  if (role != "system" && role != "user" && role != "assistant") return;
  throw ChatError(fmt::format("[{}].content must be a string or a list of text parts, got {}",
                              index, type_name(*content)));
}

bool is_json_object(const Value& arguments, jinja::JsonBudget& budget) {
  if (arguments.dict() != nullptr) return true;
  if (arguments.text() == nullptr) return false;
  try {
    return jinja::parse_json(arguments.text()->bytes, Origin::kMessage, budget).dict() != nullptr;
  } catch (const jinja::Error& error) {
    if (budget.used >= budget.most) throw ChatError(error.what());
    return false;
  }
}

// A call is {"function": {"arguments": ...}}, or for some templates {"arguments": ...}.
void check_call(const Value& call, size_t index, size_t c, jinja::JsonBudget& budget) {
  const Dict* holder = call.dict();
  const Value* function = holder == nullptr ? nullptr : holder->find("function");
  const bool inside = function != nullptr && function->dict() != nullptr;
  if (inside) holder = function->dict();
  const Value* arguments = holder == nullptr ? nullptr : holder->find("arguments");
  if (arguments == nullptr || is_json_object(*arguments, budget)) return;
  throw ChatError(fmt::format("[{}].tool_calls[{}]{}.arguments must be a JSON object", index, c,
                              inside ? ".function" : ""));
}

}  // namespace

void check_message(const Value& message, size_t index, jinja::JsonBudget& budget) {
  const Dict& fields = *message.dict();
  const std::string_view role = string_in(fields, "role");
  const Value* content = fields.find("content");
  check_content(content, role, index);
  const Value* calls = fields.find("tool_calls");
  const jinja::List* list = calls == nullptr ? nullptr : calls->list();
  if (calls != nullptr && list == nullptr) {
    throw ChatError(fmt::format("[{}].tool_calls must be a list", index));
  }
  for (size_t c = 0; list != nullptr && c < list->items.size(); ++c) {
    check_call(list->items[c], index, c, budget);
  }
  if (role != "assistant") return;
  if (fields.find("refusal") != nullptr) {
    throw ChatError(fmt::format("[{}].refusal is not supported: leave the message out", index));
  }
  if (content == nullptr && (list == nullptr || list->items.empty())) {
    throw ChatError(fmt::format("[{}] must have content or tool_calls", index));
  }
}

Text joined_parts(const jinja::List& parts) {
  Text all("", Origin::kMessage);
  size_t bytes = 0;
  for (const Value& part : parts.items) bytes += string_in(*part.dict(), "text").size();
  all.bytes.reserve(bytes);
  for (const Value& part : parts.items) all.append(*part.dict()->find("text")->text());
  return all;
}

void merge_first(std::vector<Value>& messages, size_t count) {
  constexpr std::string_view kBetween = "\n\n";
  const auto text_of = [](const Value& message) -> std::optional<Value> {
    const Value* content = message.dict()->find("content");
    if (content == nullptr) return {};
    return content->list() != nullptr ? Value::text(joined_parts(*content->list())) : *content;
  };
  std::vector<Value> texts;
  size_t bytes = 0;
  for (size_t m = 0; m < count; ++m) {
    std::optional<Value> text = text_of(messages[m]);
    if (!text) continue;
    bytes += text->text()->bytes.size() + kBetween.size();
    texts.push_back(*std::move(text));
  }
  Text all("", Origin::kMessage);
  all.bytes.reserve(bytes);
  for (const Value& text : texts) {
    if (!all.empty()) all.append(kBetween, Origin::kMessage);
    all.append(*text.text());
  }
  messages.erase(messages.begin() + 1, messages.begin() + static_cast<std::ptrdiff_t>(count));
  Dict first = *messages.front().dict();
  first.set(Text("content", Origin::kTemplate), Value::text(std::move(all)));
  messages.front() = Value::dict(std::move(first));
}

}  // namespace recurve

#include "server/http/openai/responses/response_items.h"

#include <fmt/format.h>

#include <utility>

#include "server/http/body_fields.h"
#include "server/http/openai/fields/request_fields.h"

namespace recurve {

using nlohmann::json;

std::string ResponseItems::add_reasoning(const std::string& text) {
  if (text.empty()) return {};
  std::string events;
  if (!last_is(Kind::kReasoning)) events = open({.kind = Kind::kReasoning});
  items_.back().text += text;
  return events +
         text_event_("response.reasoning_text.delta",
                     fmt::format(R"("content_index":0,"delta":{},"item_id":"{}","output_index":{})",
                                 dump(json(text)), items_.back().id, items_.size() - 1));
}

std::string ResponseItems::add_text(const std::string& text, json logprobs) {
  // Tokens of calls and of reasoning have no text, and belong to no message.
  const bool in_message = last_is(Kind::kMessage);
  if (text.empty() && (logprobs.empty() || !in_message)) return {};
  std::string events;
  if (!in_message) events = open({});
  Item& item = items_.back();
  item.text += text;
  item.logprobs.insert(item.logprobs.end(), logprobs.begin(), logprobs.end());
  return events +
         text_event_("response.output_text.delta",
                     fmt::format(R"("content_index":0,"delta":{},"item_id":"{}",)"
                                 R"("logprobs":{},"output_index":{})",
                                 dump(json(text)), item.id, dump(logprobs), items_.size() - 1));
}

std::string ResponseItems::add_call(const ToolCallPart& part) {
  std::string events;
  if (!part.name.empty()) {
    ToolCallPart begun = part;
    begun.arguments.clear();
    events = open({.kind = Kind::kCall, .call = std::move(begun)});
  }
  if (part.arguments.empty()) return events;
  items_.back().call.arguments += part.arguments;
  return events +
         text_event_("response.function_call_arguments.delta",
                     fmt::format(R"("delta":{},"item_id":"{}","output_index":{})",
                                 dump(json(part.arguments)), items_.back().id, items_.size() - 1));
}

std::string ResponseItems::end(const char* status) {
  std::string events;
  if (items_.empty()) events = open({});
  return events + close(status);
}

std::string ResponseItems::open(Item item) {
  std::string events;
  if (!items_.empty()) events = close("completed");
  const size_t index = items_.size();
  const char* const prefix = item.kind == Kind::kCall        ? "fc"
                             : item.kind == Kind::kReasoning ? "rs"
                                                             : "msg";
  item.id = fmt::format("{}_{}{}", prefix, stem_, index == 0 ? "" : fmt::format("_{}", index));
  json begun = object_of(item);
  if (item.kind != Kind::kCall) begun["content"] = json::array();
  items_.push_back(std::move(item));
  events += event_("response.output_item.added", {{"output_index", index}, {"item", begun}});
  if (last_is(Kind::kCall)) return events;
  json fields = position();
  fields["content_index"] = 0;
  fields["part"] = text_part(items_.back());
  return events + event_("response.content_part.added", std::move(fields));
}

std::string ResponseItems::close(const char* status) {
  Item& item = items_.back();
  item.status = status;
  std::string events;
  json done = position();
  if (item.kind == Kind::kCall) {
    done["arguments"] = item.call.arguments;
    done["name"] = item.call.name;
    events = event_("response.function_call_arguments.done", std::move(done));
  } else {
    json part = position();
    part["content_index"] = done["content_index"] = 0;
    done["text"] = item.text;
    if (item.kind == Kind::kMessage) done["logprobs"] = item.logprobs;
    part["part"] = text_part(item);
    events = event_(
        item.kind == Kind::kMessage ? "response.output_text.done" : "response.reasoning_text.done",
        std::move(done));
    events += event_("response.content_part.done", std::move(part));
  }
  return events + event_("response.output_item.done",
                         {{"output_index", items_.size() - 1}, {"item", object_of(item)}});
}

json ResponseItems::list() const {
  json list = json::array();
  for (const Item& item : items_) list.push_back(object_of(item));
  return list;
}

std::string ResponseItems::text_of(Kind kind) const {
  std::string text;
  for (const Item& item : items_) text += item.kind == kind ? item.text : "";
  return text;
}

ClientJson ResponseItems::calls() const {
  ClientJson calls = ClientJson::array();
  for (const Item& item : items_) {
    if (item.kind != Kind::kCall) continue;
    ValueBudget budget{.most = item.call.arguments.size()};
    auto arguments = json_object(item.call.arguments, budget);
    if (!arguments) continue;
    calls.push_back(function_call(item.call.id, item.call.name, *std::move(arguments)));
  }
  return calls;
}

json ResponseItems::object_of(const Item& item) {
  if (item.kind == Kind::kReasoning) {
    return {{"type", "reasoning"},
            {"id", item.id},
            {"status", item.status},
            {"summary", json::array()},
            {"content", json::array({text_part(item)})}};
  }
  if (item.kind == Kind::kCall) {
    return {{"type", "function_call"}, {"id", item.id},
            {"status", item.status},   {"call_id", item.call.id},
            {"name", item.call.name},  {"arguments", item.call.arguments}};
  }
  return {{"type", "message"},
          {"id", item.id},
          {"status", item.status},
          {"role", "assistant"},
          {"content", json::array({text_part(item)})}};
}

json ResponseItems::text_part(const Item& item) {
  if (item.kind == Kind::kReasoning) return {{"type", "reasoning_text"}, {"text", item.text}};
  return {{"type", "output_text"},
          {"text", item.text},
          {"annotations", json::array()},
          {"logprobs", item.logprobs}};
}

// Fields of each event of the last item.
json ResponseItems::position() const {
  return {{"item_id", items_.back().id}, {"output_index", items_.size() - 1}};
}

}  // namespace recurve

#pragma once
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "server/text/chat/tool_call_parser.h"
#include "server/text/json/client_json.h"

namespace recurve {

// The items of a response, reasoning, messages and calls of tools, and the events of a stream for
// them.
class ResponseItems {
 public:
  // The bytes of an event; empty if there is no stream.
  using Event = std::function<std::string(const char* type, nlohmann::json fields)>;
  // The same of fields that are written already: for the events of each token.
  using TextEvent = std::function<std::string(const char* type, std::string_view fields)>;
  // `stem`: of the items' ids.
  ResponseItems(std::string stem, Event event, TextEvent text_event)
      : stem_(std::move(stem)), event_(std::move(event)), text_event_(std::move(text_event)) {}

  // Each appends to the answer, and returns the events for it.
  std::string add_reasoning(const std::string& text);
  std::string add_text(const std::string& text, nlohmann::json logprobs);
  std::string add_call(const ToolCallPart& part);
  // status: "completed" or "incomplete", of the last item. Afterwards there is at least one.
  std::string end(const char* status);

  nlohmann::json list() const;
  // For the next turn: the texts, the reasoning, and the calls as templates read them, without an
  // incomplete one.
  std::string text() const { return text_of(Kind::kMessage); }
  std::string reasoning() const { return text_of(Kind::kReasoning); }
  ClientJson calls() const;

 private:
  enum class Kind { kMessage, kCall, kReasoning };
  struct Item {
    Kind kind = Kind::kMessage;
    std::string id = {}, text = {};
    nlohmann::json logprobs = nlohmann::json::array();
    ToolCallPart call = {};
    const char* status = "in_progress";
  };

  std::string text_of(Kind kind) const;
  bool last_is(Kind kind) const { return !items_.empty() && items_.back().kind == kind; }
  std::string open(Item item);
  std::string close(const char* status);
  static nlohmann::json object_of(const Item& item);
  static nlohmann::json text_part(const Item& item);
  nlohmann::json position() const;

  const std::string stem_;
  const Event event_;
  const TextEvent text_event_;
  std::vector<Item> items_;
};

}  // namespace recurve

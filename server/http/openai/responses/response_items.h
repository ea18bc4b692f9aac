#pragma once
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "server/text/chat/tool_call_parser.h"
#include "server/text/json/client_json.h"

namespace recurve {

// What a response has said: messages and calls of tools, one after another, and the events by which
// a stream says them.
class ResponseItems {
 public:
  // Makes an event of its type and its fields; may be of nothing.
  using Event = std::function<std::string(const char* type, nlohmann::json fields)>;
  // `stem`: of the items' ids.
  ResponseItems(std::string stem, Event event) : stem_(std::move(stem)), event_(std::move(event)) {}

  // More of the answer. Returned is what a stream sends for it.
  std::string add_text(const std::string& text, nlohmann::json logprobs);
  std::string add_call(const ToolCallPart& part);
  // It has ended: "completed", or "incomplete" in its last item. There is at least one then.
  std::string end(const char* status);

  nlohmann::json list() const;
  // For the conversation that goes on: the texts, and the calls as templates read them, without one
  // that was cut.
  std::string text() const;
  ClientJson calls() const;

 private:
  struct Item {
    bool is_call = false;
    std::string id = {}, text = {};
    nlohmann::json logprobs = nlohmann::json::array();
    ToolCallPart call = {};
    const char* status = "in_progress";
  };

  std::string open(Item item);
  std::string close(const char* status);
  static nlohmann::json object_of(const Item& item);
  static nlohmann::json text_part(const Item& item);
  nlohmann::json place() const;

  const std::string stem_;
  const Event event_;
  std::vector<Item> items_;
};

}  // namespace recurve

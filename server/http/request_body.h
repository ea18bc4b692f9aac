#pragma once
#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "server/http/message.h"
#include "server/request/refusal.h"
#include "server/serving/server_core.h"
#include "server/serving/text_request.h"
#include "server/text/json/client_json.h"
#include "server/text/work_limits.h"

namespace recurve {

// A field that clients of a dialect send. If a resource does not read it, it is refused by name
// because it would change the answer, or it is harmless because it would not.
struct RequestField {
  const char* name;
  int read_by;  // a bit for each resource of the dialect
  bool is_harmless;
  // JSON values that mean the same as an absent field, as null does. An empty list or object that
  // is not among them is refused, also if the field is read.
  std::array<const char*, 2> same = {};
  const char* why_harmless = nullptr;
};
inline constexpr bool kRefused = false, kHarmless = true;  // for is_harmless

// The fields of a dialect, as one of its resources reads them. Any other field is ignored.
struct FieldTable {
  std::span<const RequestField> fields;
  int resource;                   // its bit
  const char* session = nullptr;  // the field that names a session
};

// Finds the model of a body.
struct ModelQuery {
  const ServerCore& core;
  FoundModel* found;
  const Identity& caller;
  std::string session = {};  // that the header names
};

// Parses a body, finds its model, checks its fields, and calls `read`, which may throw BadField and
// may move values out of the object. The text is freed before. `id_fields`: see parse_object().
Refused read_body(std::string text, const WorkLimits& limits, const FieldTable& table,
                  std::span<const std::string_view> id_fields, const ModelQuery& query,
                  const std::function<void(ClientJson& body)>& read);

// Finds the model of a body. `session`: as in FieldTable. Throws BadField.
Refused find_model(const ClientJson& body, const char* session, const ModelQuery& query);
// Of a request without a body: the query's `model`.
Refused find_model(const HttpRequest& request, const ServerCore& core, FoundModel* model);

// Refuses more messages or items than most_messages() allows for a body of `bytes`. Throws
// BadField.
void check_messages(size_t count, const char* field, size_t bytes);

// Refuses a list of more tools than any client has. Throws BadField.
void check_tools(const ClientJson& tools);

// Refuses fields of a function that would change who calls it, how, or what the prompt has of it.
// Throws BadField.
void check_tool_fields(const ClientJson& tool);

// Reads `initial_state` and `adapter`. Throws BadField.
BindingNames chosen_of(const ClientJson& body);

// Reads any_whitespace into the constraint, without which it is refused. Throws BadField.
void read_any_whitespace(const ClientJson& body, TextRequest* asked);

// A call of a tool, as templates get it.
ClientJson function_call(std::string id, std::string name, ClientJson arguments);

// Parses a JSON object within the limits of a body; nothing if the text is none. Throws BadField if
// the budget is spent.
std::optional<ClientJson> json_object(std::string_view text, ValueBudget& budget);

}  // namespace recurve

#include "clients/cpp/cli/cli_messages.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <optional>

#include "clients/cpp/cli/cli.h"

namespace recurve {
namespace {

// Takes the field out of the message.
std::optional<std::string> take_text(nlohmann::ordered_json& message, const char* field,
                                     const std::string& where) {
  const auto found = message.find(field);
  if (found == message.end() || found->is_null()) return std::nullopt;
  if (!found->is_string()) throw UsageError(fmt::format("{}: {} must be text", where, field));
  std::string text = found->get<std::string>();
  message.erase(field);
  return text;
}

}  // namespace

v1::Messages parse_messages(const std::string& text, const std::string& name) {
  auto json = nlohmann::ordered_json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_array()) {
    throw UsageError(fmt::format(
        "{} must be a JSON array of messages: [{{\"role\": \"user\", \"content\": \"Hello\"}}]",
        name));
  }
  v1::Messages messages;
  for (size_t i = 0; i < json.size(); ++i) {
    const std::string where = fmt::format("{}, message {}", name, i + 1);
    if (!json[i].is_object()) throw UsageError(where + " must be a JSON object");
    auto& message = *messages.add_messages();
    const auto role = take_text(json[i], "role", where);
    if (!role) throw UsageError(where + " has no role");
    message.set_role(*role);
    if (const auto content = take_text(json[i], "content", where)) message.set_content(*content);
    if (!json[i].empty()) message.set_fields_json(json[i].dump());
  }
  return messages;
}

}  // namespace recurve

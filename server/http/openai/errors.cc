#include "server/http/openai/errors.h"

namespace recurve {

using nlohmann::json;

json error_object(int status, const std::string& message, const std::string& field) {
  const char* type = "server_error";
  if (status >= 400 && status < 500) type = "invalid_request_error";
  if (status == 401) type = "authentication_error";
  if (status == 403) type = "permission_error";
  if (status == 429) type = "rate_limit_error";
  json error = {
      {"message", cut(message, kMostSaid)}, {"type", type}, {"param", nullptr}, {"code", status}};
  if (!field.empty()) error["param"] = cut(field);
  return {{"error", std::move(error)}};
}

json error_of(const Refusal& refusal) {
  return error_object(refusal.row().http, refusal.message, refusal.field);
}

}  // namespace recurve

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
  return error_object(http_status(refusal.code), refusal.message, refusal.field);
}

int http_status(Refusal::Code code) {
  switch (code) {
    case Refusal::Code::kInvalid:
      return 400;
    case Refusal::Code::kStranger:
      return 401;
    case Refusal::Code::kForbidden:
      return 403;
    case Refusal::Code::kNotFound:
      return 404;
    case Refusal::Code::kExists:
    case Refusal::Code::kBusy:
    case Refusal::Code::kConflict:
      return 409;
    case Refusal::Code::kExhausted:
      return 429;
    case Refusal::Code::kCancelled:
      return 499;
    case Refusal::Code::kUnsupported:
      return 501;
    case Refusal::Code::kUnavailable:
      return 503;
    case Refusal::Code::kDeadline:
      return 504;
    case Refusal::Code::kInternal:
    case Refusal::Code::kDataLoss:
      break;
  }
  return 500;
}

}  // namespace recurve

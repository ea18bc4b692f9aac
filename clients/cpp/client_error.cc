#include "clients/cpp/client_error.h"

#include <array>
#include <utility>

namespace recurve {

ClientError::ClientError(Kind kind, grpc::StatusCode code, std::string message, std::string hint,
                         std::optional<std::chrono::milliseconds> retry_after)
    : std::runtime_error(status_code_name(code) + ": " + message),
      kind_(kind),
      code_(code),
      message_(std::move(message)),
      hint_(std::move(hint)),
      retry_after_(retry_after) {}

std::string status_code_name(grpc::StatusCode code) {
  static constexpr std::array kNames = {"OK",
                                        "CANCELLED",
                                        "UNKNOWN",
                                        "INVALID_ARGUMENT",
                                        "DEADLINE_EXCEEDED",
                                        "NOT_FOUND",
                                        "ALREADY_EXISTS",
                                        "PERMISSION_DENIED",
                                        "RESOURCE_EXHAUSTED",
                                        "FAILED_PRECONDITION",
                                        "ABORTED",
                                        "OUT_OF_RANGE",
                                        "UNIMPLEMENTED",
                                        "INTERNAL",
                                        "UNAVAILABLE",
                                        "DATA_LOSS",
                                        "UNAUTHENTICATED"};
  const auto index = static_cast<size_t>(code);
  return index < kNames.size() ? kNames[index] : "status " + std::to_string(index);
}

}  // namespace recurve

#pragma once
#include <grpcpp/support/status.h>

#include <chrono>
#include <optional>
#include <stdexcept>
#include <string>

namespace recurve {

// Why a call failed. what() is "CODE_NAME: message".
class ClientError : public std::runtime_error {
 public:
  enum class Kind {
    kRefused,      // the server refused, or failed
    kUnavailable,  // the server answers, but loads its model or drains
    kUnreachable,  // nothing answers at the address, or the connection was lost
    kCancelled,    // this side cancelled the call, or Abort ended it
  };

  ClientError(Kind kind, grpc::StatusCode code, std::string message, std::string hint = "",
              std::optional<std::chrono::milliseconds> retry_after = std::nullopt);

  Kind kind() const { return kind_; }
  grpc::StatusCode code() const { return code_; }
  // One sentence, the server's where it has one.
  const std::string& message() const { return message_; }
  const std::string& hint() const { return hint_; }  // what to do about it; may be empty
  // When to retry, if the server named a time.
  std::optional<std::chrono::milliseconds> retry_after() const { return retry_after_; }

 private:
  Kind kind_;
  grpc::StatusCode code_;
  std::string message_;
  std::string hint_;
  std::optional<std::chrono::milliseconds> retry_after_;
};

// "INVALID_ARGUMENT" and so on, as the gRPC specification spells them.
std::string status_code_name(grpc::StatusCode code);

}  // namespace recurve

#pragma once
#include <grpcpp/support/byte_buffer.h>

#include <optional>

#include "recurve/v1/sessions.pb.h"
#include "server/request/session_command.h"

namespace recurve {

// What is said of sessions, in the protocol's messages.

void fill(const SessionInfo& info, v1::Session* session);
// The one session of a result, as a v1::Session.
grpc::ByteBuffer one_session(const SessionResult& result);

template <typename Request>
std::optional<double> ttl_of(const Request& request) {
  return request.has_ttl_seconds() ? std::optional(request.ttl_seconds()) : std::nullopt;
}

template <typename Request>
std::optional<Durability> durability_of(const Request& request) {
  switch (request.durability()) {
    case v1::DURABILITY_NONE:
      return Durability::kNone;
    case v1::DURABILITY_LOCAL:
      return Durability::kLocal;
    default:
      return std::nullopt;
  }
}

template <typename Request>
std::optional<uint64_t> epoch_of(const Request& request) {
  return request.has_expected_epoch() ? std::optional(request.expected_epoch()) : std::nullopt;
}

}  // namespace recurve

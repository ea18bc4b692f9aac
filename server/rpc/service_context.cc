#include "server/rpc/service_context.h"

#include <fmt/format.h>

#include <utility>

namespace recurve {

namespace {

// The first value in the metadata; empty: none.
std::string_view first_of(const grpc::CallbackServerContext* call, const char* key) {
  const auto& metadata = call->client_metadata();
  const auto found = metadata.find(key);
  if (found == metadata.end()) return {};
  return {found->second.data(), found->second.size()};
}

// All values in the metadata, as one list.
std::string all_of(const grpc::CallbackServerContext* call, const char* key) {
  std::string all;
  const auto [begin, end] = call->client_metadata().equal_range(key);
  for (auto value = begin; value != end; ++value) {
    if (value != begin) all += ", ";
    all.append(value->second.data(), value->second.size());
  }
  return all;
}

}  // namespace

ServiceContext::ServiceContext(RpcOptions options_, ServerCore& core_)
    : options(std::move(options_)),
      core(core_),
      connections(connection_limits(options.max_connections, options.max_connections_by_address)) {}

Identity ServiceContext::caller(const grpc::CallbackServerContext* call) const {
  const Peer peer = connections.find(call->peer()).value_or(Peer{});
  const std::string authorization = all_of(call, "authorization");  // a list is not a valid key
  return core.access.identify({authorization, peer.subject, peer.address,
                               peer.of_this_machine ? "" : peer.network, peer.number});
}

CallOrigin ServiceContext::origin(const grpc::CallbackServerContext* call, const char* rpc) {
  return {.operation = rpc,
          .traceparent = std::string(first_of(call, "traceparent")),
          .tracestate = std::string(first_of(call, "tracestate"))};
}

Refused ServiceContext::identify(const grpc::CallbackServerContext* call, Role least,
                                 Identity* caller) const {
  *caller = this->caller(call);
  return check_role(*caller, least);
}

std::string ServiceContext::peer_address(const grpc::CallbackServerContext* call) const {
  return connections.find(call->peer()).value_or(Peer{}).address;
}

Refused ServiceContext::admit(const grpc::CallbackServerContext* call, Identity* caller) const {
  Refused refused = identify(call, Role::kUser, caller);
  return refused ? refused : core.availability();
}

grpc::Status ServiceContext::status_for(grpc::CallbackServerContext* call,
                                        const Refused& refusal) const {
  if (!refusal) return {};
  if (refusal->row().code == Code::kUnavailable) {
    // gRPC uses this code for a lost connection too; only the server adds this.
    const bool loading = core.state() == ServerCore::State::kLoading;
    call->AddTrailingMetadata("recurve-state", loading ? "loading" : "draining");
  }
  if (refusal->retry_seconds) {
    // Retry policies of clients follow this (gRFC A6).
    call->AddTrailingMetadata("grpc-retry-pushback-ms",
                              fmt::format("{:.0f}", 1000 * *refusal->retry_seconds));
  }
  return {static_cast<grpc::StatusCode>(refusal->row().code), cut(refusal->message, kMostSaid)};
}

}  // namespace recurve

#pragma once
#include <grpcpp/server_context.h>
#include <grpcpp/support/status.h>

#include "server/net/connections.h"
#include "server/request/refusal.h"
#include "server/request/response_sink.h"
#include "server/rpc/server.h"
#include "server/serving/server_core.h"

namespace recurve {

// Shared by the services. Outlives them and all calls.
struct ServiceContext {
  ServiceContext(RpcOptions options_, ServerCore& core_);

  // The caller; kStranger if the server has keys and the call has none of them.
  Identity caller(const grpc::CallbackServerContext* call) const;
  // The same, or why the caller does not have at least this role.
  Refused identify(const grpc::CallbackServerContext* call, Role least, Identity* caller) const;
  // The same for a user; also refuses the call while the server does not serve.
  Refused admit(const grpc::CallbackServerContext* call, Identity* caller) const;

  // rpc: PACKAGE.SERVICE/METHOD.
  static CallOrigin origin(const grpc::CallbackServerContext* call, const char* rpc);

  // The status for a refusal that ServerCore has reported. Adds trailers: when to retry if the
  // server was full, and the server's state with UNAVAILABLE.
  grpc::Status status_for(grpc::CallbackServerContext* call, const Refused& refusal) const;

  // For logs: Peer::address; empty: unknown.
  std::string peer_address(const grpc::CallbackServerContext* call) const;

  const RpcOptions options;
  ServerCore& core;
  Connections connections;
};

// The services of recurve.v1.
RpcService inference_service();
RpcService sessions_service();
RpcService control_service();

}  // namespace recurve

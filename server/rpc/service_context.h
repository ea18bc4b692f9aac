#pragma once
#include <grpcpp/server_context.h>
#include <grpcpp/support/status.h>

#include "server/net/connections.h"
#include "server/request/refusal.h"
#include "server/request/response_sink.h"
#include "server/rpc/server.h"
#include "server/serving/server_core.h"

namespace recurve {

// What the services share. Outlives them and all calls.
struct ServiceContext {
  ServiceContext(RpcOptions options_, ServerCore& core_);

  // Who calls; a stranger where there are keys and the call has none of them.
  Identity caller(const grpc::CallbackServerContext* call) const;
  // The same, or why the caller may not do what takes the role.
  Refused identify(const grpc::CallbackServerContext* call, Role least, Identity* caller) const;

  // Of a call to the rpc of that name, PACKAGE.SERVICE/METHOD.
  static CallOrigin origin(const grpc::CallbackServerContext* call, const char* rpc);

  // What gRPC says for a refusal that ServerCore has reported, with the trailers that go with it:
  // when to come again where the server was full; that it was the server who said UNAVAILABLE.
  grpc::Status status_for(grpc::CallbackServerContext* call, const Refused& refusal) const;

  const RpcOptions options;
  ServerCore& core;
  Connections connections;
};

}  // namespace recurve

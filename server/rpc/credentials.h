#pragma once
#include <grpcpp/security/server_credentials.h>

#include <memory>

#include "server/rpc/server.h"

namespace recurve {

// What the server shows and asks of its clients: the one place where TLS will come in.
inline std::shared_ptr<grpc::ServerCredentials> server_credentials(const RpcOptions&) {
  return grpc::InsecureServerCredentials();
}

}  // namespace recurve

#pragma once
#include "server/rpc/server.h"

namespace recurve {

// The door of the Open Inference Protocol, to be registered beside the services of the protocol of
// our own: see RpcServer.
RpcService kserve_service();

}  // namespace recurve

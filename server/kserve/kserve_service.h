#pragma once
#include "server/rpc/server.h"

namespace recurve {

// The Open Inference Protocol, for RpcServer.
RpcService kserve_service();

}  // namespace recurve

#pragma once
#include "server/http/routes.h"

namespace recurve {

// /health and /metrics.
HttpApi server_api(ServerCore& core);
// /v1/load: the load in the terms of the proto's Load and ServerInfo, for operators and the page.
HttpApi load_api(const ServerCore& core);

}  // namespace recurve

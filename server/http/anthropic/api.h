#pragma once
#include "server/http/routes.h"

namespace recurve {

// Anthropic's Messages API: /v1/messages and /v1/messages/count_tokens.
HttpApi anthropic_api(ServerCore& core);

}  // namespace recurve

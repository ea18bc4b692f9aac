#pragma once
#include <cstdint>

#include "server/http/routes.h"

namespace recurve {

// OpenAI's API, with sessions and the tokenizer as resources. max_response_bytes: of all stored
// responses; the oldest are removed first.
HttpApi openai_api(ServerCore& core, int64_t max_response_bytes = 64 << 20);

}  // namespace recurve

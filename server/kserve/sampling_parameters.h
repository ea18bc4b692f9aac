#pragma once
#include <string_view>

#include "server/request/refusal.h"
#include "server/serving/text_request.h"
#include "server/text/json/client_json.h"

namespace recurve {

// How an answer is to be sampled and ended, in the names that vLLM's backend of Triton has for it:
// the table is in the source. Numbers may be strings of them, as that backend's own example sends
// them. What would change the answer and is not done here is refused by name; other names are
// ignored.
Refused read_sampling(const ClientJson& parameters, TextRequest* asked);

// The same of a text of JSON.
Refused read_sampling(std::string_view json, TextRequest* asked);

// Tokens of an answer where the request says nothing, as that backend has it.
inline constexpr int32_t kDefaultInferTokens = 16;

}  // namespace recurve

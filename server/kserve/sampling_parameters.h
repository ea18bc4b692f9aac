#pragma once
#include <string_view>

#include "server/request/refusal.h"
#include "server/serving/text_request.h"
#include "server/text/json/client_json.h"

namespace recurve {

// Reads sampling parameters and stop conditions with the names of vLLM's backend of Triton: see the
// table in the source. Numbers may be strings, as in that backend's example. Parameters that would
// change the answer and are not supported are refused by name; other names are ignored.
Refused read_sampling(const ClientJson& parameters, TextRequest* asked);

// The same from JSON.
Refused read_sampling(std::string_view json, TextRequest* asked);

// The default of max_tokens, as in that backend.
inline constexpr int32_t kDefaultInferTokens = 16;

}  // namespace recurve

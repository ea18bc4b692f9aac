#pragma once
#include <nlohmann/json.hpp>
#include <string>

#include "server/http/exchange.h"
#include "server/serving/server_core.h"

namespace recurve {

// POST /tokenize: {"prompt": TEXT, "add_special_tokens": true} or {"messages": [...]}, as in a
// chat, to {"tokens": [...], "count": N}; with "return_token_strs", "token_strs" too. With
// "parse_special", names of control tokens become their ids; a prompt that is only the name of BOS
// or EOS is always its id, as clients of other servers ask for these in this way. At most as many
// tokens as a prompt may have.
Refused tokenize(HttpRequest& request, const ServerCore& core, const WorkLimits& limits,
                 std::string* object);

// POST /detokenize: {"tokens": [...]} to {"prompt": TEXT}.
Refused detokenize(HttpRequest& request, const ServerCore& core, const WorkLimits& limits,
                   std::string* object);

// GET /tokenizer_info, of the model that the query names: what a client that tokenizes itself needs
// to know of control tokens.
Refused tokenizer_info(const HttpRequest& request, const ServerCore& core, nlohmann::json* object);

}  // namespace recurve

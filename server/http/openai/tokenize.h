#pragma once
#include <nlohmann/json.hpp>
#include <string>

#include "server/http/exchange.h"
#include "server/serving/server_core.h"

namespace recurve {

// POST /tokenize: {"prompt": TEXT, "add_special_tokens": true} or {"messages": [...]}, as a chat
// reads them, to {"tokens": [...], "count": N}; with "return_token_strs", "token_strs" too. With
// "parse_special", names of control tokens become their ids; a prompt that is nothing but the name
// of BOS or EOS does so anyway, as clients of other servers ask for these. At most as many tokens
// as a prompt may have.
Refused tokenize(std::string body, const ServedModel& model, const WorkLimits& limits,
                 std::string* object);

// POST /detokenize: {"tokens": [...]} to {"prompt": TEXT}.
Refused detokenize(std::string text, const ServedModel& model, const WorkLimits& limits,
                   std::string* object);

// GET /tokenizer_info: what a client needs that tokenises here and wants to know of control tokens.
nlohmann::json tokenizer_info(const ModelText& model);

}  // namespace recurve

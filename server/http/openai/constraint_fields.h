#pragma once
#include <nlohmann/json.hpp>
#include <string_view>

#include "server/request/text_request.h"

namespace recurve {

// What a body says the answer must be, by whichever of the dialect's fields: response_format, or
// text.format of a response; guided_json, guided_regex, guided_choice, guided_grammar and
// structured_outputs as vLLM has them, regex, ebnf and json_schema as SGLang. `text` is the body as
// it came: the order of a schema's properties is that of the answer's. Throws BadField, also where
// two say something.
void read_constraint(const nlohmann::json& body, std::string_view text, TextRequest* asked);

}  // namespace recurve

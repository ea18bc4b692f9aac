#pragma once
#include "server/serving/text_request.h"
#include "server/text/json/client_json.h"

namespace recurve {

// What a body says the answer must be, by whichever of the dialect's fields: response_format, or
// text.format of a response; guided_json, guided_regex, guided_choice, guided_grammar and
// structured_outputs as vLLM has them, regex, ebnf and json_schema as SGLang. The order of a
// schema's properties is that of the answer's. Throws BadField, also where two say something.
void read_constraint(const ClientJson& body, TextRequest* asked);

}  // namespace recurve

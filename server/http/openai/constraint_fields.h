#pragma once
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

#include "server/constraint/constraint.h"

namespace recurve {

// What a body says the answer must be, by whichever of the dialect's fields: response_format, or
// text.format of a response; guided_json, guided_regex, guided_choice, guided_grammar and
// structured_outputs, as other servers have them. `text` is the body as it came: the order of a
// schema's properties is that of the answer's. Throws BadField, also where two say something.
std::optional<ConstraintText> constraint_of(const nlohmann::json& body, std::string_view text);

}  // namespace recurve

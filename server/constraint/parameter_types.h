#pragma once
#include <nlohmann/json.hpp>

#include "server/text/chat/value_types.h"

namespace recurve {

// The types that each parameter of a tool may have, and possibly more, by the schema of the
// parameters. For any JSON.
ToolParameters parameters_of(const nlohmann::ordered_json& schema);

// The parameters of a call in the library's format, as ParameterReader reads them: those that are
// required and those that may be left out, in the order of the schema. Throws ConstraintRefused. A
// string with limits, or of several types, has no '<'; a tool with named parameters has no others.
nlohmann::ordered_json parameter_format(const nlohmann::ordered_json& schema);
// The same for a tool with any parameters.
nlohmann::ordered_json any_parameters_format();

}  // namespace recurve

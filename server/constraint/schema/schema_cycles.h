#pragma once
#include <map>
#include <nlohmann/json.hpp>
#include <string>

namespace recurve {

// Throws ConstraintRefused where a definition is itself, or one of several alternatives that is
// itself, before anything of a value is read: no value would follow from it.
//   definitions: by their names, as the library reads them.
//   names: of each pointer of the client's schema, the definition's.
void refuse_cycles(const nlohmann::ordered_json& definitions,
                   const std::map<std::string, std::string>& names);

}  // namespace recurve

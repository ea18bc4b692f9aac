#pragma once
#include <map>
#include <nlohmann/json.hpp>
#include <string>

namespace recurve {

// Throws ConstraintRefused if a definition refers to itself, directly or as one of its
// alternatives, without a value in between, so that it defines no value.
//   definitions: the rewritten definitions by name
//   names: the definition of each JSON pointer of the client's schema
void refuse_cycles(const nlohmann::ordered_json& definitions,
                   const std::map<std::string, std::string>& names);

}  // namespace recurve

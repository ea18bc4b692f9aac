#pragma once
#include <functional>
#include <nlohmann/json.hpp>
#include <string>

namespace recurve {

inline constexpr int kMostMerged = 256;  // schemas of allOf, in one schema with all within it

// What a $ref at that path names.
using SchemaTarget = std::function<const nlohmann::ordered_json&(const nlohmann::ordered_json& ref,
                                                                 const std::string& path)>;

// The one schema that says what a schema with allOf does, whose branches may be references: the
// keywords of all of them, where they are different ones, or say the same, or bounds. Throws
// ConstraintRefused where it takes more than that. `merged`: how many were so far.
nlohmann::ordered_json merged_schema(const nlohmann::ordered_json& schema, const std::string& path,
                                     const SchemaTarget& target, int* merged);

}  // namespace recurve

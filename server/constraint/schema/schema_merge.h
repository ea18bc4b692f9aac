#pragma once
#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "server/constraint/schema/schema_scalars.h"

namespace recurve {

// Of one constraint: values in all schemas that are merged, as often as they are, and how deep
// those may stand in each other.
inline constexpr int kMostMerged = 100000, kMostMergeDepth = 64;

// What merging asks of whoever reads the schema.
struct SchemaSource {
  using Json = nlohmann::ordered_json;
  // What a $ref at that path names.
  std::function<const Json&(const Json& reference, const std::string& path)> target;
  // Throws ConstraintRefused where a schema has a keyword that is not enforced.
  std::function<void(const Json& schema, const std::string& path)> check;
  int merged = 0;  // so far
};

// Whether a schema has allOf or not, or says something beside a keyword that stands alone: $ref,
// const, enum, anyOf, oneOf.
bool is_to_be_merged(const nlohmann::ordered_json& schema);

// A schema that says what `schema` does, or allows less, and is not to be merged any more: the
// keywords of all branches of allOf, and of what stands beside them. Throws NothingIsValid, and
// ConstraintRefused where it takes more than that.
nlohmann::ordered_json merged_schema(const nlohmann::ordered_json& schema, const std::string& path,
                                     SchemaSource& source);

// A schema whose values are not valid for `schema`; it may leave some out of those. Throws
// ConstraintRefused where none can be said here.
nlohmann::ordered_json negated_schema(const nlohmann::ordered_json& schema, const std::string& path,
                                      SchemaSource& source, int depth = 0);

// The branches of a oneOf so that no value is valid for two of them, which are then those of an
// anyOf: what is not seen to exclude each other is made to. Throws ConstraintRefused.
nlohmann::ordered_json exclusive_branches(const nlohmann::ordered_json& branches,
                                          const std::string& path, SchemaSource& source);

}  // namespace recurve

#pragma once
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "server/constraint/schema/schema_scalars.h"

namespace recurve {

// Limits for one constraint: the number of values in merged schemas, counted for each merge, and
// the depth of nested schemas.
inline constexpr int kMostMerged = 100000, kMostMergeDepth = 64;

// What merging needs from the reader of the schema.
struct SchemaSource {
  using Json = nlohmann::ordered_json;
  // The target of a $ref at this path.
  std::function<const Json&(const Json& reference, const std::string& path)> target;
  // Throws ConstraintRefused if a schema has a keyword that is not enforced.
  std::function<void(const Json& schema, const std::string& path)> check;
  int merged = 0;  // values merged so far
};

// Whether a schema must be merged: it has allOf or not, or other keywords in addition to one of
// $ref, const, enum, anyOf and oneOf.
bool needs_merge(const nlohmann::ordered_json& schema);

// A schema that is equivalent or stricter, and needs no merge: it has the keywords of the schema
// and of all branches of its allOf. Throws NothingIsValid, and ConstraintRefused if there is no
// such schema.
nlohmann::ordered_json merged_schema(const nlohmann::ordered_json& schema, const std::string& path,
                                     SchemaSource& source);

// A schema for some or all of the values that are not valid for `schema`. Throws ConstraintRefused
// if none can be found.
nlohmann::ordered_json negated_schema(const nlohmann::ordered_json& schema, const std::string& path,
                                      SchemaSource& source, int depth = 0);

// Branches of an anyOf that replaces a oneOf: no value is valid for two of them. Branches that may
// have common values are restricted. Throws ConstraintRefused.
nlohmann::ordered_json exclusive_branches(const nlohmann::ordered_json& branches,
                                          const std::string& path, SchemaSource& source);

// Throws ConstraintRefused if a definition refers to itself, directly or as one of its
// alternatives, without a value in between, so that it defines no value.
//   definitions: the rewritten definitions by name
//   names: the definition of each JSON pointer of the client's schema
void refuse_cycles(const nlohmann::ordered_json& definitions,
                   const std::map<std::string, std::string>& names);

}  // namespace recurve

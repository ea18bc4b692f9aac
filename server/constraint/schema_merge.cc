#include "server/constraint/schema_merge.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "server/constraint/constraint.h"

namespace recurve {
namespace {

using Json = nlohmann::ordered_json;

[[noreturn]] void refuse(const std::string& path, const std::string& why) {
  throw ConstraintRefused(fmt::format("schema, allOf at {}: {}", path, why));
}

bool is_one_of(std::string_view name, std::initializer_list<std::string_view> names) {
  return std::ranges::find(names, name) != names.end();
}

// Of both: the names of one and of the other, where a name of both says the same in both.
void merge_properties(const Json& from, const std::string& path, Json* to) {
  if (!from.is_object() || !to->is_object()) refuse(path, "properties must be an object");
  for (const auto& [name, schema] : from.items()) {
    const auto found = to->find(name);
    if (found == to->end()) {
      (*to)[name] = schema;
    } else if (*found != schema) {
      refuse(path, fmt::format("two of its schemas say something of the property {}",
                               Json(name).dump(-1, ' ', true, Json::error_handler_t::replace)));
    }
  }
}

void merge_required(const Json& from, const std::string& path, Json* to) {
  if (!from.is_array() || !to->is_array()) refuse(path, "required must be an array of names");
  for (const Json& name : from) {
    if (std::ranges::find(*to, name) == to->end()) to->push_back(name);
  }
}

// What a keyword means together with others of its own schema alone.
void check_apart(const Json& one, const Json& other, const std::string& path) {
  const auto has_names = [](const Json& schema) {
    return schema.contains("properties") || schema.contains("patternProperties");
  };
  const auto closes = [](const Json& schema) {
    const auto found = schema.find("additionalProperties");
    return found != schema.end() && *found != Json(true);
  };
  if (closes(one) && has_names(other)) {
    refuse(path, "additionalProperties of one of its schemas is of the properties of another");
  }
  if (one.contains("items") && other.contains("prefixItems")) {
    refuse(path, "items of one of its schemas is of the prefixItems of another");
  }
}

void merge(const Json& from, const std::string& path, Json* to) {
  check_apart(from, *to, path);
  check_apart(*to, from, path);
  for (const auto& [keyword, value] : from.items()) {
    if (is_one_of(keyword, {"title", "description", "$comment", "default", "examples"})) continue;
    const auto found = to->find(keyword);
    if (found == to->end()) {
      (*to)[keyword] = value;
      continue;
    }
    Json& there = *found;
    const bool bounds = there.is_number() && value.is_number();
    if (there == value) continue;
    if (keyword == "properties") {
      merge_properties(value, path, &there);
    } else if (keyword == "required") {
      merge_required(value, path, &there);
    } else if (bounds && is_one_of(keyword, {"minimum", "exclusiveMinimum", "minLength", "minItems",
                                             "minProperties"})) {
      if (there < value) there = value;
    } else if (bounds && is_one_of(keyword, {"maximum", "exclusiveMaximum", "maxLength", "maxItems",
                                             "maxProperties"})) {
      if (value < there) there = value;
    } else {
      refuse(path, fmt::format("two of its schemas say something else of {}", keyword));
    }
  }
}

Json merged_branch(const Json& schema, const std::string& path, const SchemaTarget& target,
                   int* merged) {
  if (++*merged > kMostMerged) {
    refuse(path, fmt::format("with all within them they must be at most {} schemas, or one is "
                             "within itself",
                             kMostMerged));
  }
  if (schema.is_boolean() && schema.get<bool>()) return Json::object();
  if (!schema.is_object()) refuse(path, "each must be a schema for which there are values");
  if (schema.contains("$id") || schema.contains("id")) {
    refuse(path, "none of its schemas may have an $id");
  }
  Json whole = schema;
  if (const auto found = schema.find("$ref"); found != schema.end()) {
    whole.erase("$ref");
    merge(merged_branch(target(*found, path), path, target, merged), path, &whole);
  }
  if (!whole.contains("allOf")) return whole;
  return merged_schema(whole, path, target, merged);
}

}  // namespace

Json merged_schema(const Json& schema, const std::string& path, const SchemaTarget& target,
                   int* merged) {
  const Json& branches = schema.at("allOf");
  if (!branches.is_array() || branches.empty()) {
    refuse(path, "it must be an array of schemas, and not an empty one");
  }
  Json whole = schema;
  whole.erase("allOf");
  for (size_t b = 0; b < branches.size(); ++b) {
    const std::string at = fmt::format("{}/allOf/{}", path, b);
    merge(merged_branch(branches[b], at, target, merged), path, &whole);
  }
  return whole;
}

}  // namespace recurve

#include "server/constraint/parameter_types.h"

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <utility>

namespace recurve {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::pair<std::string_view, ValueTypes> kTypeNames[] = {
    {"string", kStringType},   {"integer", kNumberType}, {"number", kNumberType},
    {"boolean", kBooleanType}, {"null", kNullType},      {"array", kArrayType},
    {"object", kObjectType}};

ValueTypes type_named(const Json& name) {
  const auto* found = std::ranges::find_if(
      kTypeNames, [&](const auto& one) { return name.is_string() && name == one.first; });
  return found == std::end(kTypeNames) ? ValueTypes{0} : found->second;
}

ValueTypes type_of_value(const Json& value) {
  if (value.is_string()) return kStringType;
  if (value.is_boolean()) return kBooleanType;
  if (value.is_null()) return kNullType;
  if (value.is_array()) return kArrayType;
  return value.is_object() ? kObjectType : kNumberType;
}

// Steps are counted, as references may repeat parts of a schema any number of times.
class TypesWalk {
 public:
  explicit TypesWalk(const Json& root) : root_(root) {}

  ValueTypes of(const Json& schema, int depth = 0) {
    constexpr int kMostDepth = 32, kMostSteps = 10000;
    if (!schema.is_object() || depth > kMostDepth || ++steps_ > kMostSteps) return kAnyType;
    ValueTypes types = kAnyType;
    for (const auto& [keyword, value] : schema.items()) {
      if (keyword == "$ref") {
        if (const Json* target = target_of(value)) types &= of(*target, depth + 1);
      } else if (keyword == "const") {
        types &= type_of_value(value);
      } else if (keyword == "type" && value.is_string()) {
        types &= type_named(value);
      } else if (keyword == "allOf" && value.is_array()) {
        for (const Json& one : value) types &= of(one, depth + 1);
      } else if (value.is_array()) {
        types &= any_of(keyword, value, depth);
      }
    }
    return types == 0 ? kAnyType : types;
  }

  const Json* target_of(const Json& reference) const {
    if (!reference.is_string()) return nullptr;
    const auto& pointer = reference.get_ref<const std::string&>();
    if (!pointer.starts_with('#')) return nullptr;
    try {
      return &root_.at(Json::json_pointer(pointer.substr(1)));
    } catch (const Json::exception&) {
      return nullptr;
    }
  }

 private:
  ValueTypes any_of(const std::string& keyword, const Json& list, int depth) {
    ValueTypes types = 0;
    for (const Json& one : list) {
      if (keyword == "type") {
        types |= type_named(one);
      } else if (keyword == "enum") {
        types |= type_of_value(one);
      } else if (keyword == "anyOf" || keyword == "oneOf") {
        types |= of(one, depth + 1);
      } else {
        return kAnyType;
      }
    }
    return types == 0 ? kAnyType : types;
  }

  const Json& root_;
  int steps_ = 0;
};

}  // namespace

ToolParameters parameters_of(const Json& schema) {
  ToolParameters to;
  TypesWalk walk(schema);
  const Json* object = &schema;
  bool composed = false;
  for (int steps = 0; steps < 8 && object != nullptr && object->is_object(); ++steps) {
    const auto named = object->find("properties");
    if (named != object->end() && named->is_object()) {
      for (const auto& [name, one] : named->items()) to.types.emplace(name, walk.of(one));
    }
    for (const char* other : {"allOf", "anyOf", "oneOf", "if", "not", "patternProperties",
                              "propertyNames", "dependentSchemas"}) {
      composed |= object->contains(other);
    }
    const auto additional = object->find("additionalProperties");
    if (additional != object->end() && !composed) to.others = walk.of(*additional);
    const auto reference = object->find("$ref");
    if (reference == object->end()) break;
    composed = true;
    object = walk.target_of(*reference);
  }
  if (composed) to.others = kAnyType;
  return to;
}

}  // namespace recurve

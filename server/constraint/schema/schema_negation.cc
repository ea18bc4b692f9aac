// Negation of schemas, and oneOf by negation.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <vector>

#include "server/constraint/schema/schema_keywords.h"
#include "server/constraint/schema/schema_merge.h"
#include "server/constraint/schema/schema_patterns.h"
#include "server/constraint/schema/schema_scalars.h"
#include "server/constraint/schema/schema_walk.h"
#include "server/constraint/work_watch.h"

namespace recurve {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kAllTypes[] = {"null", "boolean", "number", "string", "array", "object"};
constexpr int kMostExclusive = 8;      // most branches that are restricted to exclude each other
constexpr int kMostDisjointDepth = 4;  // of nested properties that are compared

// A schema for values of other types; numbers that are not integers are omitted.
Json of_other_types(const Json& types) {
  const Json list = types.is_array() ? types : Json::array({types});
  Json others = Json::array();
  for (const char* type : kAllTypes) {
    const bool named = std::ranges::any_of(list, [&](const Json& one) {
      return one == type || (one == "integer" && std::string_view(type) == "number");
    });
    if (!named) others.push_back(type);
  }
  return {{"type", std::move(others)}};
}

const char* type_of(const Json& value) {
  for (const char* type : kAllTypes) {
    if (has_type(value, type)) return type;
  }
  return "null";
}

// Collects the alternatives of a negation, of which each may be omitted.
class Negation {
 public:
  Negation(const std::string& path, SchemaSource& source, int depth)
      : path_(path), source_(source), depth_(depth) {}

  void add_keyword(const std::string& keyword, const Json& given) {
    const auto bound = [&](const char* type, const char* opposite) {
      disjuncts.push_back(Json{{"type", type}, {opposite, given}});
    };
    if (keyword == "type") return add_types(given);
    if (keyword == "const") return add_values(Json::array({given}));
    if (keyword == "enum") return add_values(given);
    if (keyword == "minimum") return bound("number", "exclusiveMaximum");
    if (keyword == "maximum") return bound("number", "exclusiveMinimum");
    if (keyword == "exclusiveMinimum") return bound("number", "maximum");
    if (keyword == "exclusiveMaximum") return bound("number", "minimum");
    if (add_count(keyword, given)) return;
    if (keyword == "required") return add_required(given);
    if (keyword == "properties") return add_properties(given);
    if (keyword == "not") return disjuncts.push_back(given);
    if (keyword == "$ref") return add_negated(source_.target(given, path_), path_);
    if (keyword == "allOf" && given.is_array()) {
      for (const Json& branch : given) add_negated(branch, path_);
    }
    if (keyword == "anyOf" && given.is_array()) add_none_of(given);
  }

  std::vector<Json> disjuncts;

 private:
  void add_types(const Json& types) {
    Json others = of_other_types(types);
    if (!others.at("type").empty()) disjuncts.push_back(std::move(others));
  }

  void add_values(const Json& values) {
    if (!values.is_array()) return;
    std::set<std::string> types, names;
    bool plain = true;
    size_t bytes = 0;
    bool has_true = false, has_false = false;
    for (const Json& value : values) {
      types.insert(type_of(value));
      if (value.is_boolean()) (value.get<bool>() ? has_true : has_false) = true;
      if (!value.is_string()) continue;
      const auto& text = value.get_ref<const std::string&>();
      plain &= is_plain_name(text);
      if (names.insert(text).second) bytes += text.size();
    }
    add_types(Json(types));
    if (has_true != has_false) disjuncts.push_back(Json{{"enum", Json::array({has_false})}});
    if (!names.empty() && plain && bytes <= kMostNamedBytes) {
      disjuncts.push_back(
          Json{{"type", "string"},
               {"pattern", fmt::format("^{}$", pattern_of_others({names.begin(), names.end()}))}});
    }
  }

  bool add_count(const std::string& keyword, const Json& given) {
    for (const auto& [type, least, most] :
         {std::tuple("string", "minLength", "maxLength"),
          std::tuple("array", "minItems", "maxItems"),
          std::tuple("object", "minProperties", "maxProperties")}) {
      if (keyword != least && keyword != most) continue;
      const double count = given.is_number() ? given.get<double>() : -1;
      if (!(count >= 0 && count <= kMostSchemaCount) || std::floor(count) != count) return true;
      const auto number = static_cast<int64_t>(count);
      if (keyword == most) disjuncts.push_back(Json{{"type", type}, {least, number + 1}});
      if (keyword == least && number > 0) {
        disjuncts.push_back(Json{{"type", type}, {most, number - 1}});
      }
      return true;
    }
    return false;
  }

  void add_required(const Json& names) {
    if (!names.is_array()) return;
    for (const Json& name : names) {
      if (!name.is_string()) continue;
      disjuncts.push_back(
          Json{{"type", "object"}, {"properties", {{name.get<std::string>(), false}}}});
    }
  }

  void add_properties(const Json& properties) {
    if (!properties.is_object()) return;
    for (const auto& [name, schema] : properties.items()) {
      try {
        const std::string at = path_ + "/properties/" + name;
        disjuncts.push_back(
            Json{{"type", "object"},
                 {"properties", {{name, negated_schema(schema, at, source_, depth_ + 1)}}},
                 {"required", Json::array({name})}});
      } catch (const WorkRefused&) {
        throw;
      } catch (const ConstraintRefused&) {  // omitted
      }
    }
  }

  void add_negated(const Json& schema, const std::string& path) {
    try {
      disjuncts.push_back(negated_schema(schema, path, source_, depth_ + 1));
    } catch (const WorkRefused&) {
      throw;
    } catch (const ConstraintRefused&) {  // omitted
    }
  }

  void add_none_of(const Json& branches) {
    Json all = Json::array();
    try {
      for (const Json& branch : branches) {
        all.push_back(negated_schema(branch, path_, source_, depth_ + 1));
      }
    } catch (const WorkRefused&) {
      throw;
    } catch (const ConstraintRefused&) {  // omitted
      return;
    }
    disjuncts.push_back(Json{{"allOf", std::move(all)}});
  }

  const std::string& path_;
  SchemaSource& source_;
  const int depth_;
};

// ---- exclusive schemas ----

// The values of an enum or const as an array; null: any value.
Json values_of(const Json& schema) {
  if (const auto found = schema.find("enum"); found != schema.end()) return *found;
  if (const auto found = schema.find("const"); found != schema.end()) return Json::array({*found});
  return nullptr;
}

// The types of valid values; empty: all.
std::vector<std::string> types_in(const Json& schema) {
  std::vector<std::string> types;
  if (const Json values = values_of(schema); values.is_array()) {
    for (const Json& value : values) types.emplace_back(type_of(value));
  } else if (const auto given = schema.find("type"); given != schema.end()) {
    const Json list = given->is_array() ? *given : Json::array({*given});
    for (const Json& type : list) {
      if (type.is_string()) types.push_back(type == "integer" ? "number" : type.get<std::string>());
    }
  }
  return types;
}

class Exclusion {
 public:
  explicit Exclusion(SchemaSource& source) : source_(source) {}

  // A schema with references resolved.
  Json view(const Json& schema, const std::string& path) {
    const bool is_plain = schema.is_object() && !schema.contains("$ref") && !needs_merge(schema);
    if (is_plain) return schema;
    return merged_schema(Json{{"allOf", Json::array({schema})}}, path, source_);
  }

  // Whether it can be shown that no value is valid for both.
  bool exclude(const Json& a, const Json& b, const std::string& path, int depth = 0) {
    if (depth > kMostDisjointDepth) return false;
    for (const auto* pair : {&a, &b}) {
      const Json& rest = pair == &a ? b : a;
      for (const char* keyword : {"anyOf", "oneOf"}) {
        const auto branches = pair->find(keyword);
        if (branches == pair->end() || !branches->is_array()) continue;
        return std::ranges::all_of(*branches, [&](const Json& branch) {
          return are_exclusive(branch, rest, path, depth + 1);
        });
      }
    }
    return types_exclude(a, b) || values_exclude(a, b) || properties_exclude(a, b, path, depth);
  }

 private:
  bool are_exclusive(const Json& one, const Json& other, const std::string& path, int depth) {
    try {
      return exclude(view(one, path), view(other, path), path, depth);
    } catch (const NothingIsValid&) {
      return true;
    }
  }

  static bool types_exclude(const Json& a, const Json& b) {
    const auto mine = types_in(a), theirs = types_in(b);
    if (mine.empty() || theirs.empty()) return false;
    return std::ranges::none_of(mine, [&](const std::string& type) {
      return std::ranges::find(theirs, type) != theirs.end();
    });
  }

  static bool values_exclude(const Json& a, const Json& b) {
    const Json mine = values_of(a), theirs = values_of(b);
    if (!mine.is_array() || !theirs.is_array()) return false;
    // The order of names in an object is not significant.
    const std::set<nlohmann::json> others(theirs.begin(), theirs.end());
    return std::ranges::none_of(mine, [&](const Json& value) { return others.contains(value); });
  }

  // A property that is required by one of them, and that the other excludes, or for which the other
  // has an exclusive schema.
  bool properties_exclude(const Json& a, const Json& b, const std::string& path, int depth) {
    if (types_in(a) != std::vector<std::string>{"object"} || types_in(b) != types_in(a)) {
      return false;
    }
    for (const auto* pair : {&a, &b}) {
      const Json& other = pair == &a ? b : a;
      const Json required = pair->value("required", Json::array());
      const Json mine = pair->value("properties", Json::object());
      const Json theirs = other.value("properties", Json::object());
      const bool closed = other.value("additionalProperties", Json(true)) == Json(false) &&
                          !other.contains("patternProperties");
      for (const Json& name : required) {
        if (!name.is_string()) continue;
        const auto given = theirs.find(name.get<std::string>());
        if (given == theirs.end() ? closed : *given == Json(false)) return true;
        const auto own = mine.find(name.get<std::string>());
        if (given == theirs.end() || own == mine.end()) continue;
        if (are_exclusive(*own, *given, path, depth + 1)) return true;
      }
    }
    return false;
  }

  SchemaSource& source_;
};

}  // namespace

Json negated_schema(const Json& schema, const std::string& path, SchemaSource& source, int depth) {
  WorkWatch::check();
  constexpr const char* kWhy = "its negation is not supported: describe the valid values instead";
  if (depth > kMostMergeDepth || ++source.merged > kMostMerged) refuse_schema(path, "not", kWhy);
  if (schema.is_boolean()) return !schema.get<bool>();
  if (!schema.is_object()) refuse_schema(path, "not", "it must be a schema");
  source.check(schema, path);
  Negation negation(path, source, depth);
  bool enforced = false;
  for (const auto& [keyword, given] : schema.items()) {
    if (effective_keyword(keyword, given) == nullptr) continue;
    enforced = true;
    negation.add_keyword(keyword, given);
  }
  if (!enforced) return false;
  if (negation.disjuncts.empty()) refuse_schema(path, "not", kWhy);
  if (negation.disjuncts.size() == 1) return std::move(negation.disjuncts.front());
  return {{"anyOf", std::move(negation.disjuncts)}};
}

Json exclusive_branches(const Json& branches, const std::string& path, SchemaSource& source) {
  std::vector<Json> possible, views;
  Exclusion exclusion(source);
  for (const Json& branch : branches) {
    WorkWatch::check();
    try {
      views.push_back(exclusion.view(branch, path));
      possible.push_back(branch);
    } catch (const NothingIsValid&) {  // not an alternative
    }
  }
  std::vector<Json> excluded(possible.size(), Json::array());  // what each must exclude
  for (size_t a = 0; a < possible.size(); ++a) {
    for (size_t b = a + 1; b < possible.size(); ++b) {
      WorkWatch::check();
      if (++source.merged > kMostMerged) refuse_schema(path, "oneOf", "it has too many schemas");
      if (exclusion.exclude(views[a], views[b], path)) continue;
      excluded[a].push_back(possible[b]);
      excluded[b].push_back(possible[a]);
    }
  }
  Json exclusive = Json::array();
  for (size_t k = 0; k < possible.size(); ++k) {
    if (excluded[k].empty()) {
      exclusive.push_back(possible[k]);
      continue;
    }
    if (possible.size() > kMostExclusive) {
      refuse_schema(path, "oneOf", "a value may be valid for two of the schemas: use anyOf");
    }
    exclusive.push_back(
        Json{{"allOf", Json::array({possible[k]})}, {"not", {{"anyOf", std::move(excluded[k])}}}});
  }
  return exclusive;
}

}  // namespace recurve

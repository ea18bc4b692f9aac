#include "server/constraint/schema/schema_merge.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <set>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "server/constraint/schema/schema_keywords.h"
#include "server/constraint/schema/schema_scalars.h"
#include "server/constraint/schema/schema_walk.h"
#include "server/constraint/work_watch.h"
#include "server/text/cut.h"

namespace recurve {
namespace {

using Json = nlohmann::ordered_json;

// Keywords that a merged schema does not have.
constexpr std::string_view kOfSchemas[] = {
    "allOf",       "not", "$ref", "if", "then", "else", "dependentRequired", "dependentSchemas",
    "dependencies"};
constexpr std::string_view kAlone[] = {"$ref", "const", "enum", "anyOf", "oneOf"};

[[noreturn]] void refuse(const std::string& path, const std::string& why) {
  refuse_schema(path, "allOf", why);
}

bool is_one_of(std::string_view name, std::span<const std::string_view> names) {
  return std::ranges::find(names, name) != names.end();
}
bool is_one_of(std::string_view name, std::initializer_list<std::string_view> names) {
  return std::ranges::find(names, name) != names.end();
}

// Whether a keyword constrains values.
bool is_enforced(std::string_view keyword, const Json& value) {
  return effective_keyword(keyword, value) != nullptr;
}

Json both(const Json& one, const Json& other) {
  if (one == other || one == Json(false) || other == Json(true)) return one;
  if (other == Json(false) || one == Json(true)) return other;
  return Json{{"allOf", Json::array({one, other})}};
}

// ---- merging keywords ----

Json list_of(const Json& value) { return value.is_array() ? value : Json::array({value}); }

void merge_types(const Json& from, const std::string& path, Json* to) {
  const Json mine = list_of(from), theirs = list_of(*to);
  const auto has = [](const Json& list, const char* type) {
    return std::ranges::find(list, Json(type)) != list.end();
  };
  Json types = Json::array();
  for (const Json& type : theirs) {
    const bool is_integer = type == "integer" && has(mine, "number");
    if (std::ranges::find(mine, type) != mine.end() || is_integer) types.push_back(type);
  }
  if (has(mine, "integer") && has(theirs, "number") && !has(theirs, "integer")) {
    types.push_back("integer");
  }
  if (types.empty()) refuse_as_empty(path, "type");
  *to = types.size() == 1 ? types.front() : types;
}

void merge_required(const Json& from, const std::string& path, Json* to) {
  if (!from.is_array() || !to->is_array()) refuse(path, "required must be an array of names");
  std::set<nlohmann::json> known(to->begin(), to->end());
  for (const Json& name : from) {
    if (known.insert(name).second) to->push_back(name);
  }
}

void merge_enum(const Json& from, const std::string& path, Json* to) {
  if (!from.is_array() || !to->is_array()) refuse(path, "enum must be an array");
  const std::set<nlohmann::json> values(from.begin(), from.end());
  Json remaining = Json::array();
  for (const Json& value : *to) {
    if (values.contains(value)) remaining.push_back(value);
  }
  if (remaining.empty()) refuse_as_empty(path, "enum");
  *to = std::move(remaining);
}

// The constraint of a schema on properties that it does not name; null: none.
const Json* rule_of_others(const Json& schema) {
  const auto found = schema.find("additionalProperties");
  return found == schema.end() || *found == Json(true) ? nullptr : &*found;
}

constexpr std::string_view kOfNames[] = {"properties", "patternProperties", "additionalProperties"};

bool says_of_names(const Json& schema) {
  return std::ranges::any_of(kOfNames, [&](auto name) { return schema.contains(name); });
}

// Merges keywords of properties. The additionalProperties of one schema also constrain properties
// that only the other schema names.
void merge_properties(const Json& from, const std::string& path, Json* to) {
  if (!says_of_names(*to)) {
    for (const auto name : kOfNames) {
      if (from.contains(name)) (*to)[name] = from.at(name);
    }
    return;
  }
  const auto properties = [&](const Json& schema) {
    Json found = schema.value("properties", Json::object());
    if (!found.is_object()) refuse(path, "properties must be an object");
    if (found.size() > kMostProperties) {
      refuse_schema(path, "properties",
                    fmt::format("an object can have at most {}", kMostProperties));
    }
    return found;
  };
  const Json mine = properties(from), theirs = properties(*to);
  const Json* of_mine = rule_of_others(from);
  const Json* of_theirs = rule_of_others(*to);
  const bool patterns = from.contains("patternProperties") || to->contains("patternProperties");
  if (patterns && (of_mine != nullptr || of_theirs != nullptr)) {
    refuse(path, "additionalProperties of one schema applies to the properties of another");
  }
  Json merged = Json::object();
  reserve(theirs.size() + mine.size(), &merged);
  for (const auto& [name, schema] : theirs.items()) {
    const auto found = mine.find(name);
    merged[name] = found != mine.end()  ? both(schema, *found)
                   : of_mine != nullptr ? both(schema, *of_mine)
                                        : schema;
  }
  for (const auto& [name, schema] : mine.items()) {
    if (theirs.contains(name)) continue;
    merged[name] = of_theirs != nullptr ? both(schema, *of_theirs) : schema;
  }
  const auto rule = [&](const Json& schema) {
    return schema.value("additionalProperties", Json());
  };
  const Json others = of_mine == nullptr     ? rule(*to)
                      : of_theirs == nullptr ? rule(from)
                                             : both(*of_theirs, *of_mine);
  if (from.contains("properties") || to->contains("properties")) {
    (*to)["properties"] = std::move(merged);
  }
  if (!others.is_null()) (*to)["additionalProperties"] = others;
  if (!from.contains("patternProperties")) return;
  Json& there = (*to)["patternProperties"];
  if (!there.is_null() && there != from.at("patternProperties")) {
    refuse(path, "two schemas have different patternProperties");
  }
  there = from.at("patternProperties");
}

// Whether a value of an enum satisfies another keyword of the schema. Throws if that is not
// supported.
bool is_valid_for(const Json& value, std::string_view keyword, const Json& given,
                  const std::string& path) {
  const auto of_number = [&](auto test) { return !value.is_number() || test(value, given); };
  const auto counted = [&]() -> std::optional<int64_t> {
    if (value.is_string() && keyword.ends_with("Length")) {
      const auto& text = value.get_ref<const std::string&>();
      return std::ranges::count_if(text, [](char c) { return (c & 0xc0) != 0x80; });
    }
    if ((value.is_array() && keyword.ends_with("Items") && keyword != "prefixItems") ||
        (value.is_object() && keyword.ends_with("Properties") && keyword.starts_with("m"))) {
      return static_cast<int64_t>(value.size());
    }
    return std::nullopt;
  };
  if (keyword == "minimum") return of_number(std::greater_equal<>());
  if (keyword == "maximum") return of_number(std::less_equal<>());
  if (keyword == "exclusiveMinimum") return of_number(std::greater<>());
  if (keyword == "exclusiveMaximum") return of_number(std::less<>());
  if (const auto count = counted(); count && given.is_number()) {
    return keyword.starts_with("min") ? *count >= given : *count <= given;
  }
  const KeywordUse use = find_keyword(keyword)->use;
  const bool is_about = (use == KeywordUse::kNumber && value.is_number()) ||
                        (use == KeywordUse::kString && value.is_string()) ||
                        (use == KeywordUse::kArray && value.is_array()) ||
                        (use == KeywordUse::kObject && value.is_object());
  if (is_about) refuse_schema(path, keyword, "it cannot be combined with enum or const");
  return true;
}

// Keeps type and enum only.
void settle_values(const std::string& path, Json* whole) {
  const Json values = whole->at("enum");
  if (!values.is_array()) refuse_schema(path, "enum", "it must be an array");
  Json remaining = Json::array();
  for (const Json& value : values) {
    bool valid = true;
    for (const auto& [keyword, given] : whole->items()) {
      if (is_one_of(keyword, {"enum", "anyOf", "oneOf", "type"}) || !is_enforced(keyword, given))
        continue;
      valid &= is_valid_for(value, keyword, given, path);
    }
    if (valid) remaining.push_back(value);
  }
  if (remaining.empty()) refuse_as_empty(path, "enum");
  Json settled{{"enum", std::move(remaining)}};
  for (const char* keyword : {"type", "anyOf", "oneOf"}) {
    if (whole->contains(keyword)) settled[keyword] = whole->at(keyword);
  }
  *whole = std::move(settled);
}

// A schema that is being merged: keywords of values, and alternatives that are not merged yet.
struct Merging {
  Json whole = Json::object();
  std::vector<std::pair<std::string, Json>> choices = {};  // anyOf or oneOf, and branches
};

void merge(const Json& from, const std::string& path, Merging* merging) {
  Json& to = merging->whole;
  if ((from.contains("items") && to.contains("prefixItems")) ||
      (to.contains("items") && from.contains("prefixItems"))) {
    refuse(path, "items of one schema applies to the prefixItems of another");
  }
  if (says_of_names(from)) merge_properties(from, path, &to);
  for (const auto& [keyword, value] : from.items()) {
    if (!is_enforced(keyword, value)) continue;
    WorkWatch::check();
    if (is_one_of(keyword, kOfNames) || is_one_of(keyword, kOfSchemas)) continue;
    if (keyword == "const") {
      merge(Json{{"enum", Json::array({value})}}, path, merging);
      continue;
    }
    if (is_one_of(keyword, {"anyOf", "oneOf"})) {
      merging->choices.emplace_back(keyword, value);
      continue;
    }
    const auto found = to.find(keyword);
    if (found == to.end()) {
      to[keyword] = value;
      continue;
    }
    Json& there = *found;
    const bool bounds = there.is_number() && value.is_number();
    if (there == value) continue;
    if (keyword == "type") {
      merge_types(value, path, &there);
    } else if (keyword == "required") {
      merge_required(value, path, &there);
    } else if (keyword == "enum") {
      merge_enum(value, path, &there);
    } else if (is_one_of(keyword, {"items", "propertyNames"})) {
      there = both(there, value);
    } else if (bounds && is_one_of(keyword, {"minimum", "exclusiveMinimum", "minLength", "minItems",
                                             "minProperties"})) {
      if (there < value) there = value;
    } else if (bounds && is_one_of(keyword, {"maximum", "exclusiveMaximum", "maxLength", "maxItems",
                                             "maxProperties"})) {
      if (value < there) there = value;
    } else {
      refuse(path, fmt::format("two schemas have different values of {}", cut(keyword)));
    }
  }
}

void charge(const Json& merged, const std::string& path, int depth, SchemaSource& source) {
  WorkWatch::check();
  source.merged += values_in(merged);
  if (source.merged > kMostMerged || depth > kMostMergeDepth) {
    refuse(path, "there are too many schemas, or one contains itself");
  }
}

// Keywords of conditions, each as two alternatives.
std::vector<Json> conditions_in(const Json& schema, const std::string& path) {
  std::vector<Json> all;
  const auto either = [&](const Json& condition, const Json& then, const Json& otherwise) {
    all.push_back(Json::array({Json{{"allOf", Json::array({condition, then})}},
                               Json{{"not", condition}, {"allOf", Json::array({otherwise})}}}));
  };
  const Json any = true;
  if (const auto found = schema.find("if"); found != schema.end()) {
    either(*found, schema.value("then", any), schema.value("else", any));
  }
  for (const char* keyword : {"dependentRequired", "dependentSchemas", "dependencies"}) {
    const auto found = schema.find(keyword);
    if (found == schema.end()) continue;
    if (!found->is_object()) refuse_schema(path, keyword, "it must be an object");
    for (const auto& [name, wanted] : found->items()) {
      const Json given{{"required", Json::array({name})}};
      either(given, wanted.is_array() ? Json{{"required", wanted}} : wanted, any);
    }
  }
  return all;
}

// Adds a schema, with its references and the branches of its allOf.
void add(const Json& schema, const std::string& path, SchemaSource& source, int depth,
         Merging* merging) {
  charge(schema, path, depth, source);
  if (schema.is_boolean()) {
    if (!schema.get<bool>()) refuse_as_empty(path, "false");
    return;
  }
  if (!schema.is_object()) refuse(path, "each must be a schema with valid values");
  source.check(schema, path);
  if (depth > 0 && (schema.contains("$id") || schema.contains("id"))) {
    refuse(path, "no schema in it can have an $id");
  }
  merge(schema, path, merging);
  for (Json& condition : conditions_in(schema, path)) {
    merging->choices.emplace_back("anyOf", std::move(condition));
  }
  if (const auto found = schema.find("$ref"); found != schema.end()) {
    add(source.target(*found, path), path, source, depth + 1, merging);
  }
  if (const auto found = schema.find("allOf"); found != schema.end()) {
    if (!found->is_array() || found->empty()) {
      refuse(path, "it must be a non-empty array of schemas");
    }
    for (size_t b = 0; b < found->size(); ++b) {
      add((*found)[b], fmt::format("{}/allOf/{}", path, b), source, depth + 1, merging);
    }
  }
  if (const auto found = schema.find("not"); found != schema.end()) {
    const std::string at = path + "/not";
    add(negated_schema(*found, at, source, depth + 1), at, source, depth + 1, merging);
  }
}

// Each alternative, merged with the other keywords.
Json settled(Merging merging, const std::string& path, SchemaSource& source, int depth) {
  if (merging.whole.contains("enum")) settle_values(path, &merging.whole);
  if (merging.choices.empty()) return std::move(merging.whole);
  const auto [keyword, branches] = std::move(merging.choices.front());
  merging.choices.erase(merging.choices.begin());
  if (!branches.is_array() || branches.empty()) {
    refuse_schema(path, keyword, "it must be a non-empty array of schemas");
  }
  if (merging.whole.empty() && merging.choices.empty()) return {{keyword, branches}};
  Json with_all = Json::array();
  for (size_t b = 0; b < branches.size(); ++b) {
    const std::string at = fmt::format("{}/{}/{}", path, keyword, b);
    charge(merging.whole, at, depth, source);
    for (const auto& [other, of_other] : merging.choices) charge(of_other, at, depth, source);
    try {
      Merging one = merging;
      add(branches[b], at, source, depth + 1, &one);
      with_all.push_back(settled(std::move(one), at, source, depth + 1));
    } catch (const NothingIsValid&) {  // not an alternative
    }
  }
  if (with_all.empty()) refuse_as_empty(path, keyword);
  return {{keyword, std::move(with_all)}};
}

}  // namespace

bool needs_merge(const Json& schema) {
  if (!schema.is_object()) return false;
  const auto has = [&](std::string_view keyword) {
    return keyword != "$ref" && schema.contains(keyword);
  };
  if (std::ranges::any_of(kOfSchemas, has)) return true;
  const bool has_values = schema.contains("enum") || schema.contains("const");
  int alone = 0, others = 0;
  for (const auto& [keyword, value] : schema.items()) {
    if (!is_enforced(keyword, value) || (keyword == "type" && has_values)) continue;
    ++(is_one_of(keyword, kAlone) ? alone : others);
  }
  return alone > 1 || (alone == 1 && others > 0);
}

Json merged_schema(const Json& schema, const std::string& path, SchemaSource& source) {
  Merging merging;
  add(schema, path, source, 0, &merging);
  return settled(std::move(merging), path, source, 0);
}

}  // namespace recurve

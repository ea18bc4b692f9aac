#include "server/constraint/schema/schema_walk.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "server/constraint/constraint.h"
#include "server/constraint/schema/schema_merge.h"
#include "server/constraint/schema/schema_patterns.h"
#include "server/constraint/schema/schema_scalars.h"
#include "server/constraint/text_walk.h"
#include "server/constraint/work_watch.h"
#include "server/text/cut.h"

namespace recurve {
namespace {

using Json = nlohmann::ordered_json;  // with the order of properties

constexpr std::string_view kTypes[] = {"null",   "boolean", "integer", "number",
                                       "string", "array",   "object"};

// Appends a token to a JSON pointer for messages.
std::string below(const std::string& path, std::string_view name) {
  return fmt::format("{}/{}", path, name);
}

class SchemaWalk {
 public:
  explicit SchemaWalk(Json root) : root_(std::move(root)) {}

  std::string run() {
    Json walked = read(root_, "#");
    // Definitions may refer to further ones.
    std::vector<std::pair<std::string, Json>> targets;
    while (!referred_.empty()) {
      const std::string pointer = std::move(referred_.back());
      referred_.pop_back();
      Json target = read(target_of(pointer, pointer), pointer);
      targets.emplace_back(names_.at(pointer), std::move(target));
    }
    if (targets.empty()) return walked.dump();
    Json definitions = Json::object();
    reserve(targets.size() + 1, &definitions);
    for (auto& [name, target] : targets) definitions[name] = std::move(target);
    refuse_cycles(definitions, names_);
    definitions["root"] = std::move(walked);
    return Json{{"$ref", "#/$defs/root"}, {"$defs", std::move(definitions)}}.dump();
  }

 private:
  // ---- one schema ----

  using Keywords = SchemaKeywords;

  Json read(const Json& schema, const std::string& path, int depth = 0) {
    WorkWatch::check();
    if (++nodes_ > kMostSchemaNodes) {
      throw ConstraintRefused(
          fmt::format("schema: it must have at most {} schemas and values", kMostSchemaNodes));
    }
    if (depth > kMostSchemaDepth) {
      throw ConstraintRefused(fmt::format("schema, at {}: it is nested more than {} levels deep",
                                          cut(path, kMostRepeated), kMostSchemaDepth));
    }
    if (schema.is_boolean()) {
      if (!schema.get<bool>()) refuse_as_empty(path, "false");
      return Json::object();
    }
    if (!schema.is_object())
      refuse_schema(path, "schema", "a schema must be an object, true or false");
    if (needs_merge(schema)) {
      return read(merged_schema(schema, path, source_), path, depth + 1);
    }
    const Keywords keywords = sort(schema, path);
    return read_keywords(keywords, path, depth);
  }

  Keywords sort(const Json& schema, const std::string& path) {
    Keywords keywords;
    for (const auto& [keyword, value] : schema.items()) {
      if ((keyword == "$id" || keyword == "id") && path != "#" && has_reference(schema)) {
        refuse_schema(path, keyword, "a $ref in it would refer to another schema");
      }
      const SchemaKeyword* known = effective_keyword(keyword, value);
      if (known == nullptr) continue;
      switch (known->use) {
        case KeywordUse::kRefused:
          refuse_schema(path, keyword,
                        known->note.empty()
                            ? "it is not enforced here: leave it out"
                            : fmt::format("it is not enforced here ({})", known->note));
        case KeywordUse::kAny:
          keywords.of_any[keyword] = &value;
          break;
        case KeywordUse::kNumber:
          keywords.of_number[keyword] = &value;
          break;
        case KeywordUse::kString:
          keywords.of_string[keyword] = &value;
          break;
        case KeywordUse::kArray:
          keywords.of_array[keyword] = &value;
          break;
        case KeywordUse::kObject:
          keywords.of_object[keyword] = &value;
          break;
      }
    }
    return keywords;
  }

  static bool has_reference(const Json& schema) {
    if (schema.is_object() && schema.contains("$ref")) return true;
    return schema.is_structured() && std::ranges::any_of(schema, has_reference);
  }

  Json read_keywords(const Keywords& keywords, const std::string& path, int depth) {
    for (const char* alone : {"$ref", "const", "enum", "anyOf", "oneOf"}) {
      const Json* value = keywords.find(alone);
      if (value == nullptr) continue;
      check_alone(keywords, alone, path);
      const std::string_view keyword = alone;
      if (keyword == "$ref") return read_reference(*value, path);
      if (keyword == "const" || keyword == "enum") count_values(*value, keyword, path);
      if (keyword == "const") return read_values(Json::array({*value}), keywords, "const", path);
      if (keyword == "enum") return read_values(*value, keywords, "enum", path);
      return read_branches(*value, keyword, path, depth);
    }
    std::vector<std::string> types = types_of(keywords, path);
    if (types.empty()) return Json::object();
    if (types.size() == 1) return read_typed(types.front(), keywords, path, depth);
    Json branches = Json::array();
    for (const std::string& type : types)
      branches.push_back(read_typed(type, keywords, path, depth));
    return {{"anyOf", std::move(branches)}};
  }

  void check_alone(const Keywords& keywords, std::string_view keyword, const std::string& path) {
    for (const auto* group : {&keywords.of_any, &keywords.of_number, &keywords.of_string,
                              &keywords.of_array, &keywords.of_object}) {
      for (const auto& [other, value] : *group) {
        if (other == keyword || (other == "type" && keyword != "$ref")) continue;
        refuse_schema(path, other, fmt::format("it cannot be combined with {}", keyword));
      }
    }
  }

  // The types of valid values, or those of the keywords; empty: all.
  std::vector<std::string> types_of(const Keywords& keywords, const std::string& path) {
    if (const Json* type = keywords.find("type")) return read_types(*type, path);
    std::vector<std::string> types;
    if (!keywords.of_number.empty()) types.push_back("number");
    if (!keywords.of_string.empty()) types.push_back("string");
    if (!keywords.of_array.empty()) types.push_back("array");
    if (!keywords.of_object.empty()) types.push_back("object");
    return types;
  }

  std::vector<std::string> read_types(const Json& type, const std::string& path) {
    std::vector<std::string> types;
    const Json list = type.is_array() ? type : Json::array({type});
    for (const Json& one : list) {
      if (!one.is_string() ||
          std::ranges::find(kTypes, one.get_ref<const std::string&>()) == std::end(kTypes)) {
        refuse_schema(path, "type", fmt::format("{} is not a type", cut(one.dump())));
      }
      types.push_back(one.get<std::string>());
    }
    if (types.empty()) refuse_schema(path, "type", "it must not be empty");
    return types;
  }

  bool has_one_of(const Json& value, const std::vector<std::string>& types) {
    return types.empty() ||
           std::ranges::any_of(types, [&](const auto& type) { return has_type(value, type); });
  }

  // Counts values and the values in them, before they are copied.
  void count_values(const Json& keywords, std::string_view keyword, const std::string& path) {
    nodes_ += values_in(keywords);
    if (nodes_ <= kMostSchemaNodes) return;
    refuse_schema(path, keyword,
                  fmt::format("a schema can have at most {} values", kMostSchemaNodes));
  }

  Json read_values(const Json& values, const Keywords& keywords, std::string_view keyword,
                   const std::string& path) {
    if (!values.is_array()) refuse_schema(path, keyword, "it must be an array");
    std::vector<std::string> types;
    if (const Json* type = keywords.find("type")) types = read_types(*type, path);
    Json matching = Json::array();
    for (const Json& value : values) {
      WorkWatch::check();
      if (!has_one_of(value, types)) continue;
      check_numbers(value, keyword, path);
      matching.push_back(value);
    }
    if (matching.empty()) refuse_as_empty(path, keyword);
    return {{"enum", std::move(matching)}};
  }

  Json read_branches(const Json& branches, std::string_view keyword, const std::string& path,
                     int depth) {
    if (!branches.is_array() || branches.empty()) {
      refuse_schema(path, keyword, "it must be a non-empty array of schemas");
    }
    const Json exclusive =
        keyword == "oneOf" ? exclusive_branches(branches, path, source_) : Json::array();
    Json results = Json::array();
    size_t index = 0;
    for (const Json& branch : keyword == "oneOf" ? exclusive : branches) {
      const std::string at = below(path, fmt::format("{}/{}", keyword, index++));
      try {
        results.push_back(read(branch, at, depth + 1));
      } catch (const NothingIsValid&) {  // not an alternative
      }
    }
    if (results.empty()) {
      refuse_as_empty(path, keyword,
                      keyword == "oneOf" ? "no value is valid for exactly one of the schemas"
                                         : "no value is valid for it");
    }
    if (results.size() == 1) return results.front();
    return {{"anyOf", std::move(results)}};
  }

  // ---- references ----

  Json read_reference(const Json& reference, const std::string& path) {
    if (!reference.is_string()) refuse_schema(path, "$ref", "it must be a string");
    std::string pointer = reference.get<std::string>();
    const Json* target = &target_of(pointer, path);
    // Follows definitions that are only a reference.
    for (int steps = 0; target->is_object() && target->contains("$ref") && !needs_merge(*target);
         ++steps) {
      if (steps == kMostSchemaDepth) refuse_schema(path, "$ref", "it refers to itself");
      sort(*target, pointer);
      if (!target->at("$ref").is_string()) refuse_schema(pointer, "$ref", "it must be a string");
      pointer = target->at("$ref").get<std::string>();
      target = &target_of(pointer, path);
    }
    const auto [found, is_new] = names_.emplace(pointer, fmt::format("r{}", names_.size()));
    if (is_new) referred_.push_back(pointer);
    return {{"$ref", "#/$defs/" + found->second}};
  }

  const Json& target_of(const std::string& reference, const std::string& path) {
    if (reference != "#" && !reference.starts_with("#/")) {
      refuse_schema(
          path, "$ref",
          fmt::format("it must be # or begin with #/, got {}", cut(Json(reference).dump())));
    }
    try {
      return root_.at(Json::json_pointer(unescaped(reference.substr(1))));
    } catch (const Json::exception&) {
      refuse_schema(path, "$ref", fmt::format("the schema has no {}", cut(Json(reference).dump())));
    }
  }

  // Decodes percent-encoding.
  static std::string unescaped(const std::string& uri) {
    std::string out;
    for (size_t i = 0; i < uri.size(); ++i) {
      const auto digit = [&](size_t at) -> int {
        if (at >= uri.size() || std::isxdigit(static_cast<unsigned char>(uri[at])) == 0) return -1;
        return std::stoi(uri.substr(at, 1), nullptr, 16);
      };
      if (uri[i] == '%' && digit(i + 1) >= 0 && digit(i + 2) >= 0) {
        out += static_cast<char>(digit(i + 1) * 16 + digit(i + 2));
        i += 2;
      } else {
        out += uri[i];
      }
    }
    return out;
  }

  // ---- by type ----

  Json read_typed(const std::string& type, const Keywords& keywords, const std::string& path,
                  int depth) {
    check_format(keywords, type, path);
    if (type == "integer") return read_integer(keywords, path, &nodes_);
    if (type == "number") return read_number(keywords, path, &nodes_);
    if (type == "string") return read_string(keywords, path, &pattern_bytes_);
    if (type == "array") return read_array(keywords, path, depth);
    if (type == "object") return read_object(keywords, path, depth);
    return {{"type", type}};
  }

  Json read_array(const Keywords& keywords, const std::string& path, int depth) {
    constexpr size_t kMostKeywords = 8;
    Json out{{"type", "array"}};
    reserve(kMostKeywords, &out);
    counts(keywords, "minItems", "maxItems", path, &out);
    const int64_t most = out.value("maxItems", int64_t{kMostSchemaCount});
    if (const Json* unique = keywords.find("uniqueItems")) {
      if (!unique->is_boolean()) refuse_schema(path, "uniqueItems", "it must be true or false");
      if (unique->get<bool>() && most > 1) {
        refuse_schema(path, "uniqueItems", "it is not enforced here: leave it out");
      }
    }
    if (const Json* prefix = keywords.find("prefixItems")) {
      if (!prefix->is_array()) refuse_schema(path, "prefixItems", "it must be an array of schemas");
      Json items = Json::array();
      for (const Json& item : *prefix) {
        if (static_cast<int64_t>(items.size()) == most) break;
        const std::string at = below(path, fmt::format("prefixItems/{}", items.size()));
        items.push_back(read(item, at, depth + 1));
      }
      if (!items.empty()) out["prefixItems"] = std::move(items);
    }
    const Json* items = keywords.find("items");
    if (items != nullptr && items->is_array()) {
      refuse_schema(path, "items",
                    "it must be a schema: an array of schemas is prefixItems since 2020-12");
    }
    const bool closed = items != nullptr && items->is_boolean() && !items->get<bool>();
    if (closed && out.value("minItems", size_t{0}) > out.value("prefixItems", Json()).size()) {
      refuse_as_empty(path, "minItems", "there are fewer items");
    }
    if (closed) {
      out["items"] = false;
    } else {
      out["items"] =
          items == nullptr ? Json::object() : read(*items, below(path, "items"), depth + 1);
    }
    return out;
  }

  Json read_object(const Keywords& keywords, const std::string& path, int depth) {
    constexpr size_t kMostKeywords = 8;
    Json out{{"type", "object"}};
    reserve(kMostKeywords, &out);
    const Json* patterns = keywords.find("patternProperties");
    const Json* name_rules = keywords.find("propertyNames");
    std::set<std::string> absent;
    Json properties = read_properties(keywords, path, depth, &absent);
    const bool named = !properties.empty() || !absent.empty();
    for (const auto& [keyword, value] :
         {std::pair("patternProperties", patterns), std::pair("propertyNames", name_rules)}) {
      if (value == nullptr) continue;
      if (named) refuse_schema(path, keyword, "it cannot be combined with properties or required");
    }
    if (patterns != nullptr && name_rules != nullptr) {
      refuse_schema(path, "propertyNames", "it cannot be combined with patternProperties");
    }
    const Json* additional = keywords.find("additionalProperties");
    bool open = false;
    if (patterns != nullptr) {
      out["patternProperties"] = read_patterns(*patterns, additional, path, depth);
    } else if (name_rules != nullptr) {
      out["patternProperties"] = read_names(*name_rules, additional, path, depth);
    } else if (additional != nullptr ? *additional != Json(false)
                                     : !named && keywords.find("properties") == nullptr) {
      const Json any = true;
      Json others = read(additional == nullptr ? any : *additional,
                         below(path, "additionalProperties"), depth + 1);
      open = true;
      if (named) {
        // Excludes the names of properties, which would have another schema otherwise.
        const std::vector<std::string> names = plain_names(properties, absent);
        size_t bytes = 0;
        for (const std::string& name : names) bytes += name.size();
        open = bytes <= kMostNamedBytes;
        if (open) out["patternProperties"] = {{pattern_of_others(names), std::move(others)}};
      } else {
        out["additionalProperties"] = std::move(others);
      }
    }
    if (!out.contains("additionalProperties")) out["additionalProperties"] = false;
    counts(keywords, "minProperties", "maxProperties", path, &out);
    const bool has_more = open || out.contains("patternProperties");
    if (out.value("minProperties", 0) > 1 && has_more) {
      refuse_schema(path, "minProperties",
                    "more than 1 is only supported if all properties are named");
    }
    if (!has_more && out.value("minProperties", size_t{0}) > properties.size()) {
      refuse_as_empty(path, "minProperties", "there are fewer properties");
    }
    if (!properties.empty()) {
      Json required = Json::array();
      if (const Json* wanted = keywords.find("required")) required = *wanted;
      out["properties"] = std::move(properties);
      const std::set<Json> wanted(required.begin(), required.end());
      if (wanted.size() > out.value("maxProperties", wanted.size())) {
        refuse_as_empty(path, "maxProperties", "more properties are required");
      }
      if (!required.empty()) out["required"] = std::move(required);
    }
    return out;
  }

  // The names that a pattern of plain names can match.
  static std::vector<std::string> plain_names(const Json& properties,
                                              const std::set<std::string>& absent) {
    std::vector<std::string> names;
    for (const auto& [name, schema] : properties.items()) names.push_back(name);
    names.insert(names.end(), absent.begin(), absent.end());
    std::erase_if(names, [](const std::string& name) { return !is_plain_name(name); });
    return names;
  }

  // Adds to `absent` the names that a valid object never has.
  Json read_properties(const Keywords& keywords, const std::string& path, int depth,
                       std::set<std::string>* absent) {
    Json results = Json::object();
    const auto check_count = [&] {
      if (results.size() <= kMostProperties) return;
      refuse_schema(path, "properties",
                    fmt::format("an object can have at most {}", kMostProperties));
    };
    if (const Json* properties = keywords.find("properties")) {
      if (!properties->is_object()) refuse_schema(path, "properties", "it must be an object");
      reserve(std::min(properties->size(), size_t{kMostProperties}) + 1, &results);
      for (const auto& [name, schema] : properties->items()) {
        try {
          results[name] = read(schema, below(path, "properties/" + name), depth + 1);
        } catch (const NothingIsValid&) {
          absent->insert(name);
        }
        check_count();
      }
    }
    if (const Json* required = keywords.find("required")) {
      if (!required->is_array()) refuse_schema(path, "required", "it must be an array of names");
      for (const Json& name : *required) {
        if (!name.is_string()) refuse_schema(path, "required", "it must be an array of names");
        const auto& text = name.get_ref<const std::string&>();
        if (absent->contains(text))
          refuse_as_empty(path, "required", "no value is valid for " + cut(name.dump()));
        if (results.contains(text)) continue;
        const Json* additional = keywords.find("additionalProperties");
        const Json any = true;
        results[text] =
            read(additional == nullptr ? any : *additional, below(path, "required"), depth + 1);
        check_count();
      }
    }
    return results;
  }

  Json read_patterns(const Json& patterns, const Json* additional, const std::string& path,
                     int depth) {
    if (!patterns.is_object() || patterns.size() != 1) {
      refuse_schema(path, "patternProperties", "it must be an object with one pattern");
    }
    if (additional != nullptr && *additional != Json(false)) {
      refuse_schema(path, "additionalProperties", "with patternProperties it must be false");
    }
    const std::string name = patterns.items().begin().key();
    const std::string pattern =
        checked_pattern(Json(name), "patternProperties", path, &pattern_bytes_);
    return {{pattern, read(patterns.front(), below(path, "patternProperties"), depth + 1)}};
  }

  Json read_names(const Json& names, const Json* additional, const std::string& path, int depth) {
    const Json merged = needs_merge(names) ? merged_schema(names, path, source_) : names;
    const Json walked =
        merged.is_object() ? read_typed("string", sort(merged, path), path, depth) : Json::object();
    if (!walked.contains("pattern")) refuse_schema(path, "propertyNames", "it must have a pattern");
    if (walked.contains("minLength") || walked.contains("maxLength")) {
      refuse_schema(path, "propertyNames", "its pattern must imply the length: write it as {m,n}");
    }
    const Json any = true;
    return {{walked.at("pattern").get<std::string>(),
             read(additional == nullptr ? any : *additional, below(path, "additionalProperties"),
                  depth + 1)}};
  }

  const Json root_;
  int nodes_ = 0;
  SchemaSource source_{
      .target = [this](const Json& reference, const std::string& path) -> const Json& {
        if (!reference.is_string()) refuse_schema(path, "$ref", "it must be a string");
        return target_of(reference.get<std::string>(), path);
      },
      .check = [this](const Json& schema, const std::string& path) { sort(schema, path); }};
  size_t pattern_bytes_ = 0;
  std::map<std::string, std::string> names_;  // names of definitions, by pointer
  std::vector<std::string> referred_;         // pointers of definitions to read
};

}  // namespace

std::string enforceable_schema(std::string_view schema) {
  if (schema.size() > kMostConstraintBytes) {
    throw ConstraintRefused(fmt::format("schema: it must have at most {} bytes, got {}",
                                        kMostConstraintBytes, schema.size()));
  }
  // Before any recursion.
  if (nests_deeper_than(schema, kMostJsonNesting)) {
    throw ConstraintRefused(
        fmt::format("schema: it is nested more than {} levels deep", kMostJsonNesting));
  }
  Json parsed;
  try {
    parsed = parse_watched(schema, /*throws=*/true);
  } catch (const Json::parse_error& error) {
    throw ConstraintRefused(fmt::format("schema: it is not valid JSON at byte {}", error.byte));
  } catch (const Json::exception&) {
    throw ConstraintRefused("schema: it is not valid JSON: a number is out of range");
  }
  return SchemaWalk(std::move(parsed)).run();
}

}  // namespace recurve

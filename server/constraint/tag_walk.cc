#include "server/constraint/tag_walk.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "server/constraint/constraint.h"
#include "server/constraint/schema_walk.h"
#include "server/constraint/text_walk.h"

namespace recurve {
namespace {

using Json = nlohmann::ordered_json;

[[noreturn]] void refuse(const std::string& why) {
  throw ConstraintRefused("structural tag: " + why);
}

const std::string& text_of(const Json& object, const char* name) {
  const auto found = object.find(name);
  if (found == object.end() || !found->is_string() ||
      found->get_ref<const std::string&>().empty()) {
    refuse(fmt::format("{} must be a text that is not empty", name));
  }
  return found->get_ref<const std::string&>();
}

bool flag_of(const Json& object, const char* name) {
  const auto found = object.find(name);
  if (found == object.end()) return false;
  if (!found->is_boolean()) refuse(fmt::format("{} must be true or false", name));
  return found->get<bool>();
}

void check_keys(const Json& object, std::initializer_list<std::string_view> known) {
  if (!object.is_object()) refuse("it must be an object");
  for (const auto& [key, value] : object.items()) {
    if (std::ranges::find(known, std::string_view(key)) == known.end()) {
      refuse(fmt::format("{} is not known", Json(key).dump()));
    }
  }
}

const Json& list_of(const Json& object, const char* name) {
  const auto found = object.find(name);
  if (found == object.end() || !found->is_array() || found->empty() || found->size() > kMostTags) {
    refuse(fmt::format("{} must have 1 to {} entries", name, kMostTags));
  }
  return *found;
}

}  // namespace

std::string enforceable_tags(std::string_view tags) {
  if (tags.size() > kMostConstraintBytes) {
    refuse(fmt::format("it must have at most {} bytes, got {}", kMostConstraintBytes, tags.size()));
  }
  Json parsed = Json::parse(
      tags,
      [](int depth, Json::parse_event_t, Json&) {
        if (depth > 4 * kMostSchemaDepth) refuse("it nests too deep");
        return true;
      },
      /*allow_exceptions=*/false);
  check_keys(parsed, {"triggers", "structures", "required", "single"});
  Json triggers = Json::array(), structures = Json::array();
  for (const Json& trigger : list_of(parsed, "triggers")) {
    if (!trigger.is_string() || trigger.get_ref<const std::string&>().empty()) {
      refuse("each of triggers must be a text that is not empty");
    }
    triggers.push_back(trigger);
  }
  for (const Json& structure : list_of(parsed, "structures")) {
    check_keys(structure, {"begin", "schema", "end"});
    const std::string& begin = text_of(structure, "begin");
    const auto triggered = std::ranges::count_if(triggers, [&](const Json& trigger) {
      return begin.starts_with(trigger.get_ref<const std::string&>());
    });
    if (triggered != 1) {
      refuse(fmt::format("{} must begin with one of the triggers, and not with two",
                         Json(begin).dump()));
    }
    if (!structure.contains("schema")) refuse("each of structures must have a schema");
    const std::string schema = enforceable_schema(structure.at("schema").dump());
    structures.push_back(
        {{"type", "tag"},
         {"begin", begin},
         {"content", {{"type", "json_schema"}, {"json_schema", Json::parse(schema)}}},
         {"end", text_of(structure, "end")}});
  }
  const Json format{{"type", "triggered_tags"},
                    {"triggers", std::move(triggers)},
                    {"tags", std::move(structures)},
                    {"at_least_one", flag_of(parsed, "required")},
                    {"stop_after_first", flag_of(parsed, "single")}};
  return Json{{"type", "structural_tag"}, {"format", format}}.dump();
}

}  // namespace recurve

#include "server/constraint/tag_walk.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "server/constraint/constraint.h"
#include "server/constraint/parameter_types.h"
#include "server/constraint/schema/schema_walk.h"
#include "server/constraint/tag_formats.h"
#include "server/constraint/text_walk.h"
#include "server/constraint/work_watch.h"
#include "server/text/cut.h"

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
    refuse(fmt::format("{} must be a non-empty string", name));
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
      refuse(fmt::format("unknown field {}", cut(Json(key).dump())));
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

// A value of a schema, in the library's format.
Json json_of(const std::string& schema, bool any_whitespace = false) {
  Json format{{"type", "json_schema"}, {"json_schema", parse_watched(enforceable_schema(schema))}};
  if (any_whitespace) format["max_whitespace_cnt"] = kMostWhitespace;
  return format;
}

std::string whole(Json format) {
  return Json{{"type", "structural_tag"}, {"format", std::move(format)}}.dump();
}

Json token(int32_t id) { return {{"type", "token"}, {"token", id}}; }

// ---- tool calls ----

// A mark, which may be a control token, and the white space around it.
struct Mark {
  std::string before, text, after;
  int32_t id;
};
Mark mark_of(const Json& answer, const char* name, const char* id) {
  const std::string all = answer.value(name, "");
  const size_t begin = std::min(all.find_first_not_of(" \n"), all.size());
  const size_t end = all.find_last_not_of(" \n") + 1;  // 0 if there is only white space
  if (begin >= end) return {all, "", "", -1};
  return {all.substr(0, begin), all.substr(begin, end - begin), all.substr(end),
          answer.value(id, -1)};
}

// The arguments of a call, as parameters or as JSON; any object if the schema cannot be enforced
// and `strict` is false.
Json arguments_of(const Json& call, bool as_parameters) {
  try {
    return as_parameters ? parameter_format(call.at("schema")) : json_of(call.at("schema").dump());
  } catch (const WorkRefused&) {
    throw;
  } catch (const ConstraintRefused& refused) {
    if (!call.value("strict", true)) {
      return as_parameters ? any_parameters_format() : json_of(R"({"type":"object"})");
    }
    throw ConstraintRefused(
        fmt::format("the parameters of {}: {}", cut(call.value("name", "")), refused.what()));
  }
}

// A tag for each call.
Json tags_of(const Json& answer, const Mark& mark, const Mark& close) {
  const bool as_parameters = answer.value("shape", "") == "parameters";
  Json tags = Json::array();
  for (const Json& call : list_of(answer, "calls")) {
    Json tag{{"type", "tag"}};
    Json within = Json::array();
    std::string begin = call.value("begin", "");
    if (mark.id >= 0) {
      tag["begin"] = token(mark.id);
      within.push_back(constant(mark.after + begin));
    } else {
      tag["begin"] = mark.text + mark.after + begin;
    }
    within.push_back(arguments_of(call, as_parameters));
    const std::string end = call.value("end", "") + close.before;
    if (close.id >= 0) {
      within.push_back(constant(end));
      tag["end"] = token(close.id);
    } else {
      tag["end"] = end + close.text;
    }
    tag["content"] = sequence(std::move(within));
    tags.push_back(std::move(tag));
  }
  return tags;
}

// The large member is added last, because an object copies its members when it grows.
Json one_after_another(Json tags, const char* separator, bool single) {
  Json format{{"type", "tags_with_separator"},
              {"separator", separator},
              {"at_least_one", true},
              {"stop_after_first", single}};
  format["tags"] = std::move(tags);
  return format;
}

// Free text in which the mark begins one of the tags.
Json between_text(Json tags, const Mark& mark, bool single) {
  Json format{{"type", mark.id < 0 ? "triggered_tags" : "token_triggered_tags"},
              {"at_least_one", false},
              {"stop_after_first", single}};
  if (mark.id < 0) {
    format["triggers"] = {mark.text};
  } else {
    format["trigger_tokens"] = {mark.id};
  }
  format["tags"] = std::move(tags);
  return format;
}

// The calls, or instead of them the content of the answer, if it has a schema.
Json calls_or_content(const Json& answer, Json calls) {
  const auto content = answer.find("content");
  if (content == answer.end()) return calls;
  try {
    Json json = json_of(content->value("schema", ""), flag_of(*content, "any_whitespace"));
    return {{"type", "or"}, {"elements", Json::array({std::move(calls), std::move(json)})}};
  } catch (const WorkRefused&) {
    throw;
  } catch (const ConstraintRefused& refused) {
    throw ConstraintRefused(fmt::format("{}: {}", content->value("field", ""), refused.what()));
  }
}

Json marked_calls(const Json& answer) {
  const Mark mark = mark_of(answer, "mark", "mark_id"),
             close = mark_of(answer, "close", "close_id");
  Json tags = tags_of(answer, mark, close);
  const bool single = flag_of(answer, "single");
  if (flag_of(answer, "required")) {
    return calls_or_content(answer, one_after_another(std::move(tags), "\n", single));
  }
  return between_text(std::move(tags), mark, single);
}

Json listed_calls(const Json& answer) {
  const Mark mark = mark_of(answer, "mark", "mark_id"),
             close = mark_of(answer, "close", "close_id"), none{"", "", "", -1};
  const Json calls =
      one_after_another(tags_of(answer, none, none), ", ", flag_of(answer, "single"));
  const std::string begin = mark.after + "[";
  Json within = mark.id < 0 ? calls : sequence({constant(begin), calls});
  if (close.id >= 0) within = sequence({std::move(within), constant("]")});
  const Json tag{{"type", "tag"},
                 {"begin", mark.id < 0 ? Json(mark.text + begin) : token(mark.id)},
                 {"content", within},
                 {"end", close.id < 0 ? Json("]" + close.text) : token(close.id)}};
  if (flag_of(answer, "required")) return calls_or_content(answer, tag);
  return between_text(Json::array({tag}), mark, true);
}

// An answer that begins with a brace is a call.
Json answer_or_call(const Json& answer) {
  const Mark none{"", "", "", -1};
  Json call = one_after_another(tags_of(answer, none, none), "", /*single=*/true);
  if (flag_of(answer, "required")) return calls_or_content(answer, std::move(call));
  const Json text{
      {"type", "grammar"},
      {"grammar", "root ::= \"\" | [^{ \\n\\r\\t] rest\nrest ::= [\\u0000-\\U0010FFFF]*"}};
  return {{"type", "or"}, {"elements", Json::array({std::move(call), text})}};
}

}  // namespace

std::string enforceable_tags(std::string_view tags, bool any_whitespace) {
  if (tags.size() > kMostConstraintBytes) {
    refuse(fmt::format("it must have at most {} bytes, got {}", kMostConstraintBytes, tags.size()));
  }
  if (nests_deeper_than(tags, kMostJsonNesting)) refuse("it is nested too deep");
  const Json parsed = parse_watched(tags);
  check_keys(parsed, {"triggers", "structures", "required", "single"});
  Json triggers = Json::array(), structures = Json::array();
  for (const Json& trigger : list_of(parsed, "triggers")) {
    if (!trigger.is_string() || trigger.get_ref<const std::string&>().empty()) {
      refuse("each of triggers must be a non-empty string");
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
      refuse(
          fmt::format("{} must begin with exactly one of the triggers", cut(Json(begin).dump())));
    }
    if (!structure.contains("schema")) refuse("each of structures must have a schema");
    structures.push_back({{"type", "tag"},
                          {"begin", begin},
                          {"content", json_of(structure.at("schema").dump(), any_whitespace)},
                          {"end", text_of(structure, "end")}});
  }
  Json format{{"type", "triggered_tags"},
              {"triggers", std::move(triggers)},
              {"tags", std::move(structures)},
              {"at_least_one", flag_of(parsed, "required")},
              {"stop_after_first", flag_of(parsed, "single")}};
  return whole(std::move(format));
}

std::string enforceable_calls(std::string_view calls) {
  if (nests_deeper_than(calls, kMostJsonNesting)) refuse("it is nested too deep");
  const Json answer = parse_watched(calls);
  if (!answer.is_object()) refuse("it must be an object");
  const std::string& shape = text_of(answer, "shape");
  if (shape == "marked" || shape == "parameters") return whole(marked_calls(answer));
  return whole(shape == "list" ? listed_calls(answer) : answer_or_call(answer));
}

std::vector<int32_t> control_ids_of(std::string_view calls) {
  std::vector<int32_t> ids;
  const Json answer = parse_watched(calls);
  for (const char* name : {"mark_id", "close_id"}) {
    if (const int32_t id = answer.value(name, -1); id >= 0) ids.push_back(id);
  }
  return ids;
}

}  // namespace recurve

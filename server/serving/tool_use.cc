#include "server/serving/tool_use.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>
#include <vector>

#include "server/constraint/constraint_library.h"
#include "server/constraint/parameter_types.h"
#include "server/constraint/text_walk.h"
#include "server/serving/validate.h"
#include "server/text/cut.h"

namespace recurve {
namespace {

using Json = nlohmann::ordered_json;  // the model generates properties in the order of the schema

constexpr size_t kMaxToolName = 64;

bool is_tool_name(const std::string& name) {
  return !name.empty() && name.size() <= kMaxToolName &&
         std::ranges::all_of(name, [](unsigned char c) {
           return std::isalnum(c) != 0 || c == '_' || c == '-' || c == '.';
         });
}

Refusal wrong(const std::string& why) { return invalid("tools", "tools: {}", why); }

struct Tool {
  std::string name;
  Json schema;
  bool strict = true;
};

// OpenAI's {"type": "function", "function": {...}}, or the function alone.
Refused read_tool(const Json& json, Tool* tool) {
  const auto holder = json.is_object() ? json.find("function") : json.end();
  const Json& function = json.is_object() && holder != json.end() ? *holder : json;
  if (!function.is_object()) return wrong("each must be an object with a function");
  const auto type = json.find("type");
  if (type != json.end() && *type != Json("function")) {
    return wrong(fmt::format("the type of each must be \"function\", got {}",
                             cut(type->dump(-1, ' ', true, Json::error_handler_t::replace))));
  }
  const auto name = function.find("name");
  if (name == function.end() || !name->is_string() || !is_tool_name(name->get<std::string>())) {
    return wrong("the name of each function must be 1 to 64 of [A-Za-z0-9_.-]");
  }
  tool->name = name->get<std::string>();
  tool->schema = Json{{"type", "object"}, {"properties", Json::object()}};
  const auto schema = function.find("parameters");
  if (schema != function.end() && !schema->is_null()) {
    if (!schema->is_object()) {
      return wrong(fmt::format("the parameters of {} must be a JSON Schema", cut(tool->name)));
    }
    tool->schema = *schema;
    if (!schema->contains("type") && !schema->contains("$ref")) tool->schema["type"] = "object";
  }
  const auto strict = function.find("strict");
  tool->strict = strict == function.end() || *strict != Json(false);
  return {};
}

Refused read_list(const std::string& tools_json, const ToolUse& use, std::vector<Tool>* tools) {
  if (tools_json.size() > kMostConstraintBytes) {
    return wrong(fmt::format("they must have at most {} bytes, got {}", kMostConstraintBytes,
                             tools_json.size()));
  }
  if (nests_deeper_than(tools_json, kMostJsonNesting)) return wrong("they nest too deep");
  const Json list = Json::parse(tools_json, nullptr, /*allow_exceptions=*/false);
  if (!list.is_array() || list.empty()) return wrong("they must be a list of functions");
  const std::set<std::string> allowed(use.allowed.begin(), use.allowed.end());
  std::set<std::string> names;
  for (const Json& json : list) {
    Tool tool;
    if (Refused refused = read_tool(json, &tool)) return refused;
    if (!names.insert(tool.name).second) {
      return wrong(fmt::format("two have the name {}", cut(tool.name)));
    }
    if (allowed.empty() || allowed.contains(tool.name)) tools->push_back(std::move(tool));
  }
  for (const std::string& name : allowed) {
    if (names.contains(name)) continue;
    return invalid("tool_choice", "tool_choice names {}, and no tool has that name",
                   cut(Json(name).dump(-1, ' ', true, Json::error_handler_t::replace)));
  }
  return {};
}

const char* shape_name(ToolForm::Shape shape) {
  switch (shape) {
    case ToolForm::Shape::kMarked:
      return "marked";
    case ToolForm::Shape::kList:
      return "list";
    case ToolForm::Shape::kWhole:
      return "whole";
    case ToolForm::Shape::kParameters:
      return "parameters";
  }
  return "";
}

std::shared_ptr<const ToolTypes> types_of(const std::vector<Tool>& tools) {
  auto types = std::make_shared<ToolTypes>();
  for (const Tool& tool : tools) (*types)[tool.name] = parameters_of(tool.schema);
  return types;
}

// `content`: the constraint on text that the answer may have instead of calls; null: none.
ConstraintText constraint_of(const std::vector<Tool>& tools, const ToolUse& use,
                             const ToolRules& rules, const Json& content) {
  const ToolForm& form = *rules.form;
  const bool marked = form.shape == ToolForm::Shape::kParameters;
  Json calls = Json::array();
  for (const Tool& tool : tools) {
    std::string begin = marked
                            ? fmt::format("{}{}>\n", kFunctionMark, tool.name)
                            : fmt::format(R"({{"name": "{}", "{}": )", tool.name, form.arguments);
    calls.push_back({{"name", tool.name},
                     {"begin", std::move(begin)},
                     {"schema", tool.schema},
                     {"strict", tool.strict},
                     {"end", marked ? kFunctionClose : "}"}});
  }
  Json text{{"shape", shape_name(form.shape)}, {"mark", form.mark},
            {"mark_id", rules.mark},           {"close", form.close},
            {"close_id", rules.close},         {"required", use.required || !content.is_null()},
            {"single", !use.parallel},         {"calls", std::move(calls)}};
  if (!content.is_null()) text["content"] = content;
  return {ConstraintText::Form::kToolCalls,
          text.dump(-1, ' ', false, Json::error_handler_t::replace)};
}

}  // namespace

int32_t control_id(std::string_view text, const ModelText& model) {
  const std::optional<int32_t> id = text.empty() ? std::nullopt : model.tokenizer->id_of(text);
  const bool usable = id && *id < model.vocab.usable && model.tokenizer->is_special(*id);
  return usable ? *id : -1;
}

ToolRules tool_rules_of(const ModelText& model) {
  ToolRules to{.form = model.chat.tool_form};
  if (to.form == nullptr) return to;
  to.mark = control_id(mark_token(*to.form), model);
  to.close = control_id(close_token(*to.form), model);
  return to;
}

Refused read_tools(const std::string& tools_json, const ToolUse& use, const ToolRules& rules,
                   const std::string& field, ToolReading* reading,
                   std::optional<ConstraintText>* constraint) {
  if (rules.form == nullptr) {
    return wrong(
        fmt::format("the chat template of the model has no known form of calls ({}): leave tools "
                    "out, or send tool_choice none",
                    tool_form_names()));
  }
  std::vector<Tool> tools;
  if (Refused refused = read_list(tools_json, use, &tools)) return refused;
  *reading = {.form = rules.form, .mark = rules.mark};
  if (rules.form->shape == ToolForm::Shape::kParameters) reading->types = types_of(tools);
  Json content;  // with required calls there is none
  if (*constraint && !use.required) {
    const bool any = (*constraint)->form == ConstraintText::Form::kJson;
    content = {{"field", field},
               {"schema", any ? "{}" : (*constraint)->text},
               {"any_whitespace", (*constraint)->any_whitespace}};
  }
  reading->exclusive = !content.is_null();
  const bool free = !use.required && use.allowed.empty() && content.is_null();
  if (free && !has_constraint_library()) return {};
  *constraint = constraint_of(tools, use, rules, content);
  return {};
}

std::string make_call_id(const ToolForm& form) {
  return std::string(form.id_prefix) + make_name("").substr(0, form.id_characters);
}

}  // namespace recurve

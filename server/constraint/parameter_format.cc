#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "server/constraint/constraint.h"
#include "server/constraint/parameter_types.h"
#include "server/constraint/pattern_automaton.h"
#include "server/constraint/regex_walk.h"
#include "server/constraint/schema/schema_scalars.h"
#include "server/constraint/schema/schema_walk.h"
#include "server/constraint/tag_formats.h"
#include "server/constraint/text_walk.h"
#include "server/text/cut.h"

namespace recurve {
namespace {

using Json = nlohmann::ordered_json;

[[noreturn]] void refuse_parameters(const std::string& why) {
  throw ConstraintRefused("schema: " + why + ", in the model's form of calls");
}

Json grammar(const std::string& root) {
  return {{"type", "grammar"}, {"grammar", "root ::= " + root}};
}
Json any_of(Json elements) {
  if (elements.size() == 1) return elements.front();
  return {{"type", "or"}, {"elements", std::move(elements)}};
}

// A schema that enforceable_schema() has rewritten, with the definitions of its references.
class Walked {
 public:
  explicit Walked(Json schema) : schema_(std::move(schema)) {}

  const Json& root() const { return followed(schema_); }
  // The target of a reference.
  const Json& followed(const Json& schema) const {
    const Json* at = &schema;
    for (int steps = 0; at->contains("$ref"); ++steps) {
      if (steps == kMostSchemaDepth) refuse_parameters("a $ref refers to itself");
      at = &schema_.at(Json::json_pointer(at->at("$ref").get<std::string>().substr(1)));
    }
    return *at;
  }
  // A JSON value of this part.
  Json format_of(Json part) const {
    if (schema_.contains("$defs") && part.dump().find("\"$ref\"") != std::string::npos) {
      part["$defs"] = schema_.at("$defs");
    }
    return {{"type", "json_schema"}, {"json_schema", std::move(part)}};
  }

 private:
  const Json schema_;
};

// One parameter's value.
class ValueFormat {
 public:
  ValueFormat(const Walked& walked, ValueTypes types) : walked_(walked), types_(types) {}

  // The rest of a parameter after its mark.
  Json of(const Json& schema) {
    if (add(schema, 0) && risky() == 0) return tag({{"type", "any_text"}}, "");
    if (plain_string_) add_strings(0, -1);
    for (const Json& values : strings_) add_string(values);
    for (const std::string& text : constants_) add_constant(text);
    if (formats_.empty()) refuse_parameters("no value is valid for a parameter");
    return tag(any_of(std::move(formats_)), "\n");
  }

 private:
  Json tag(Json content, std::string_view break_before_close) const {
    const std::string_view close = parameter_close(types_);
    const std::string before = close.starts_with('\n') ? "" : std::string(break_before_close);
    return Json::array({std::move(content), before + std::string(close)});
  }

  // Whether the value may be any string, or anything.
  bool add(const Json& schema, int depth) {
    const Json& one = walked_.followed(schema);
    if (depth > kMostSchemaDepth) refuse_parameters("a parameter is nested too deep");
    if (one.empty()) {
      free_ = kAnyType;
      return true;
    }
    if (const auto branches = one.find("anyOf"); branches != one.end()) {
      bool any = false;
      for (const Json& branch : *branches) any |= add(branch, depth + 1);
      return any;
    }
    if (const auto values = one.find("enum"); values != one.end()) {
      add_values(*values);
      return false;
    }
    const std::string type = one.value("type", "");
    if (type == "string") {
      plain_string_ |= one.size() == 1;
      if (one.size() > 1) strings_.push_back(one);
      return one.size() == 1;
    }
    if (one.size() == 1 && type == "null") free_ |= kNullType;
    if (one.size() == 1 && type == "boolean") free_ |= kBooleanType;
    if (one.size() == 1 && type == "number") free_ |= kNumberType;
    formats_.push_back(walked_.format_of(one));
    return false;
  }

  void add_values(const Json& values) {
    Json others = Json::array();
    for (const Json& value : values) {
      if (value.is_string()) {
        constants_.push_back(value.get<std::string>());
      } else {
        others.push_back(value);
      }
    }
    if (!others.empty()) formats_.push_back(walked_.format_of({{"enum", std::move(others)}}));
  }

  // The types besides strings with values that are not valid: a string must not look like them.
  ValueTypes risky() const { return static_cast<ValueTypes>(types_ & ~kStringType & ~free_); }

  // Of `least` to `most` characters; `most` -1: any number.
  void add_strings(int64_t least, int64_t most) {
    const std::string any = "[^<]";
    if (risky() == 0) return formats_.push_back(grammar(any + count(least, most)));
    // Without the first characters of JSON.
    const std::string rest = R"([^-0-9\[{"tfn< \n\r\t] )" + any +
                             count(std::max<int64_t>(least, 1) - 1, most < 0 ? -1 : most - 1);
    if (least == 0) formats_.push_back(constant(""));
    if (most != 0) formats_.push_back(grammar(rest));
  }

  static std::string count(int64_t least, int64_t most) {
    if (most < 0) return least == 0 ? "*" : fmt::format("{{{},}}", least);
    return fmt::format("{{{},{}}}", least, most);
  }

  void add_string(const Json& schema) {
    const auto pattern = schema.find("pattern");
    if (pattern == schema.end()) {
      return add_strings(schema.value("minLength", int64_t{0}),
                         schema.value("maxLength", int64_t{-1}));
    }
    if (risky() != 0)
      refuse_parameters("a string with a pattern or format cannot have another type too");
    const TextLengths lengths = lengths_of(schema);
    const auto& regex = pattern->get_ref<const std::string&>();
    if (lengths.least == 0 && !lengths.most) {
      return formats_.push_back(grammar(ebnf_of_json_pattern(regex)));
    }
    const CharacterSet allowed = CharacterSet('<', '<').complement();
    const PatternAutomaton automaton = counted_pattern(regex, lengths, allowed);
    if (automaton.states.empty()) {
      refuse_parameters("a string with this pattern and length needs a <");
    }
    formats_.push_back({{"type", "grammar"}, {"grammar", ebnf_of(automaton)}});
  }

  // Left out if it would be read as another value, or as the end of the parameter.
  void add_constant(const std::string& text) {
    if (text.find(parameter_close(kStringType)) != std::string::npos) return;
    const ValueTypes type = type_of_json(trimmed(text));
    if (type != kStringType && (type & risky()) != 0) return;
    formats_.push_back(constant(text));
  }

  const Walked& walked_;
  const ValueTypes types_;
  ValueTypes free_ = 0;  // types whose values are all valid
  bool plain_string_ = false;
  Json strings_ = Json::array();
  std::vector<std::string> constants_;
  Json formats_ = Json::array();
};

// `name`: a format, or the text of the name.
Json parameter(const Json& name, Json value) {
  Json content = Json::array();
  std::string begin(kParameterMark);
  if (name.is_string()) {
    begin += name.get<std::string>() + ">\n";
  } else {
    content.push_back(name);
    content.push_back(constant(">\n"));
  }
  content.push_back(std::move(value.at(0)));
  const Json tag{{"type", "tag"},
                 {"begin", std::move(begin)},
                 {"content", sequence(std::move(content))},
                 {"end", value.at(1)}};
  return sequence(Json::array({tag, constant("\n")}));
}

Json any_name() { return grammar("[A-Za-z0-9_.-]{1,64}"); }

void check_name(const std::string& name) {
  constexpr size_t kMostName = 256;
  if (!name.empty() && name.size() <= kMostName && name.find_first_of("<>\n") == std::string::npos)
    return;
  refuse_parameters(
      fmt::format("a parameter's name must be 1 to {} bytes without <, > and line breaks, got {}",
                  kMostName, cut(Json(name).dump())));
}

}  // namespace

Json parameter_format(const Json& schema) {
  const Walked walked(parse_watched(enforceable_schema(schema.dump())));
  const ToolParameters types = parameters_of(schema);
  const Json& object = walked.root();
  if (object.value("type", "") != "object") refuse_parameters("the parameters must be one object");
  for (const char* keyword : {"minProperties", "maxProperties", "patternProperties"}) {
    // Other names than those of properties are left out.
    if (object.contains(keyword) &&
        !(keyword == std::string_view("patternProperties") && object.contains("properties"))) {
      refuse_parameters(fmt::format("{} of the parameters is not enforced", keyword));
    }
  }
  Json elements = Json::array();
  const Json required = object.value("required", Json::array());
  const auto named = object.find("properties");
  if (named == object.end()) {
    const Json others = object.value("additionalProperties", Json(false));
    if (others == Json(false)) return constant("");
    Json value = ValueFormat(walked, types.others).of(others);
    return {{"type", "star"}, {"content", parameter(any_name(), std::move(value))}};
  }
  for (const auto& [name, property] : named->items()) {
    check_name(name);
    Json one = parameter(name, ValueFormat(walked, types.of(name)).of(property));
    const bool is_required = std::ranges::find(required, Json(name)) != required.end();
    elements.push_back(is_required ? std::move(one)
                                   : Json{{"type", "optional"}, {"content", std::move(one)}});
  }
  return sequence(std::move(elements));
}

Json any_parameters_format() {
  Json value = Json::array({Json{{"type", "any_text"}}, parameter_close(kAnyType)});
  return {{"type", "star"}, {"content", parameter(any_name(), std::move(value))}};
}

}  // namespace recurve

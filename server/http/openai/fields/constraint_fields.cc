#include <algorithm>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/http/body_fields.h"
#include "server/http/openai/fields/request_fields.h"

namespace recurve {
namespace {

using Form = ConstraintText::Form;

struct Found {
  std::string field;
  ConstraintText constraint;
};

const ClientJson* find_in(const ClientJson& object, const char* name) {
  const auto found = object.is_object() ? object.find(name) : object.end();
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

// A string, or JSON as its text.
std::string text_or_json(const ClientJson& value) {
  return value.is_string() ? value.get<std::string>() : value.dump();
}

std::string text_of(const ClientJson& value, const std::string& field) {
  if (!value.is_string()) throw BadField(field, field + " must be a string");
  return value.get<std::string>();
}

ConstraintText schema_of(const ClientJson* schema, const std::string& field) {
  if (schema == nullptr) throw BadField(field, field + " must have a schema");
  return {Form::kJsonSchema, schema->dump()};
}

[[noreturn]] void refuse_key(const std::string& field, std::string_view key) {
  const std::string name = field + "." + cut(key);
  throw BadField(name, name + " is not supported here: leave it out");
}

// A constraint that is not supported must not be ignored.
void check_keys(const ClientJson& object, const std::string& field,
                std::initializer_list<std::string_view> known) {
  if (!object.is_object()) throw BadField(field, field + " must be an object");
  for (const auto& [key, value] : object.items()) {
    if (value.is_null() || std::ranges::find(known, key) != known.end()) continue;
    refuse_key(field, key);
  }
}

// {"type": ...}, with the schema in "json_schema", or next to the type if `flat`.
std::optional<ConstraintText> format_of(const ClientJson& format, const std::string& field,
                                        bool flat) {
  const ClientJson* type = find_in(format, "type");
  const std::string name = type != nullptr && type->is_string() ? type->get<std::string>() : "";
  if (name == "text") {
    check_keys(format, field, {"type"});
    return std::nullopt;
  }
  if (name == "json_object") {
    check_keys(format, field, {"type", "schema"});
    const ClientJson* schema = find_in(format, "schema");
    return ConstraintText{Form::kJsonSchema,
                          schema == nullptr ? R"({"type":"object"})" : schema->dump()};
  }
  if (name == "json_schema" && flat) {
    check_keys(format, field, {"type", "name", "description", "schema", "strict"});
    return schema_of(find_in(format, "schema"), field);
  }
  if (name == "json_schema") {
    check_keys(format, field, {"type", "json_schema"});
    const ClientJson* holder = find_in(format, "json_schema");
    if (holder == nullptr) return schema_of(nullptr, field);
    check_keys(*holder, field + ".json_schema", {"name", "description", "schema", "strict"});
    return schema_of(find_in(*holder, "schema"), field);
  }
  if (name == "structural_tag") {
    ClientJson tags = format;
    tags.erase("type");
    return ConstraintText{Form::kStructuralTag, tags.dump()};
  }
  throw BadField(field, field +
                            ".type must be \"text\", \"json_object\", \"json_schema\" or "
                            "\"structural_tag\"");
}

// Readers of the constraint fields of other servers.
using Read = std::optional<ConstraintText> (*)(const ClientJson& value, const std::string& field);

std::optional<ConstraintText> json_of(const ClientJson& value, const std::string&) {
  return ConstraintText{Form::kJsonSchema, text_or_json(value)};
}
std::optional<ConstraintText> regex_of(const ClientJson& value, const std::string& field) {
  return ConstraintText{Form::kRegex, text_of(value, field)};
}
std::optional<ConstraintText> choice_of(const ClientJson& value, const std::string& field) {
  if (!value.is_array()) throw BadField(field, field + " must be a list of strings");
  return ConstraintText{Form::kChoice, value.dump()};
}
std::optional<ConstraintText> grammar_of(const ClientJson& value, const std::string& field) {
  return ConstraintText{Form::kGrammar, text_of(value, field)};
}
std::optional<ConstraintText> object_of(const ClientJson& value, const std::string& field) {
  if (!value.is_boolean()) throw BadField(field, field + " must be true or false");
  if (!value.get<bool>()) return std::nullopt;
  return ConstraintText{Form::kJsonSchema, R"({"type":"object"})"};
}
std::optional<ConstraintText> tags_of(const ClientJson& value, const std::string& field) {
  const std::string text = text_of(value, field);
  const ClientJson tags = ClientJson::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!tags.is_object()) throw BadField(field, field + " must be a JSON object in a string");
  ClientJson rest = tags;
  rest.erase("type");
  return ConstraintText{Form::kStructuralTag, rest.dump()};
}
// An option that may only be false.
std::optional<ConstraintText> off(const ClientJson& value, const std::string& field) {
  if (value.is_boolean() && !value.get<bool>()) return std::nullopt;
  throw BadField(field, field + " is not supported here: leave it out");
}

// One that is read elsewhere.
std::optional<ConstraintText> flag(const ClientJson& value, const std::string& field) {
  if (!value.is_boolean()) throw BadField(field, field + " must be true or false");
  return std::nullopt;
}

struct Named {
  std::string_view name;
  Read read;
};
constexpr Named kConstraintFields[] = {
    {"guided_json", json_of},       {"guided_regex", regex_of}, {"guided_choice", choice_of},
    {"guided_grammar", grammar_of}, {"regex", regex_of},        {"ebnf", grammar_of},
    {"json_schema", json_of},
};
// Fields of structured_outputs. What cannot be enforced is refused, with disable_fallback or
// without.
constexpr Named kStructuredOutputs[] = {
    {"json", json_of},
    {"regex", regex_of},
    {"choice", choice_of},
    {"grammar", grammar_of},
    {"json_object", object_of},
    {"structural_tag", tags_of},
    {"disable_fallback", [](auto&, auto&) { return std::optional<ConstraintText>(); }},
    {"disable_any_whitespace", flag},
    {"disable_additional_properties", off},
};

void read_structured_outputs(const ClientJson& outputs, std::vector<Found>* found) {
  const std::string field = "structured_outputs";
  if (!outputs.is_object()) throw BadField(field, field + " must be an object");
  for (const auto& [name, value] : outputs.items()) {
    if (value.is_null()) continue;
    const auto* known = std::ranges::find(kStructuredOutputs, name, &Named::name);
    if (known == std::end(kStructuredOutputs)) refuse_key(field, name);
    const std::string within = field + "." + name;
    if (auto constraint = known->read(value, within)) found->push_back({within, *constraint});
  }
  if (!found->empty()) return;
  throw BadField(
      field, field + " must have one of json, regex, choice, grammar, json_object, structural_tag");
}

void read_text(const ClientJson& of_text, std::vector<Found>* found) {
  if (!of_text.is_object()) throw BadField("text", "text must be an object");
  for (const auto& [name, value] : of_text.items()) {
    if (name == "format" || value.is_null() || (name == "verbosity" && value == "medium")) continue;
    refuse_key("text", name);
  }
  const ClientJson* format = find_in(of_text, "format");
  auto constraint = format == nullptr ? std::nullopt : format_of(*format, "text.format", true);
  if (constraint) found->push_back({"text", *std::move(constraint)});
}

// Whether the field is present. Refuses one with more bytes than a constraint may have.
bool has_constraint(const ClientJson& body, const char* field) {
  const ClientJson* value = find(body, field);
  if (value == nullptr) return false;
  const size_t bytes = dump(*value).size();
  if (bytes <= kMostConstraintBytes) return true;
  throw BadField(field, fmt::format("{} must have at most {} bytes, got {}", field,
                                    kMostConstraintBytes, bytes));
}

void read_form(const ClientJson& body, TextRequest* asked) {
  bool any = false;
  for (const char* field : {"response_format", "text", "structured_outputs"}) {
    any |= has_constraint(body, field);
  }
  for (const Named& named : kConstraintFields) any |= has_constraint(body, named.name.data());
  if (!any) return;
  std::vector<Found> found;
  if (const ClientJson* format = find_in(body, "response_format")) {
    if (auto constraint = format_of(*format, "response_format", /*flat=*/false)) {
      found.push_back({"response_format", *std::move(constraint)});
    }
  }
  if (const ClientJson* of_text = find_in(body, "text")) read_text(*of_text, &found);
  for (const Named& field : kConstraintFields) {
    const std::string name(field.name);
    const ClientJson* value = find_in(body, name.c_str());
    auto constraint = value == nullptr ? std::nullopt : field.read(*value, name);
    if (constraint) found.push_back({name, *std::move(constraint)});
  }
  const ClientJson* outputs = find_in(body, "structured_outputs");
  if (outputs != nullptr) read_structured_outputs(*outputs, &found);
  if (found.size() > 1) {
    throw BadField(found[1].field, found[1].field + " must not be combined with " + found[0].field);
  }
  if (found.empty()) return;
  asked->constraint = std::move(found.front().constraint);
  asked->constraint_field = std::move(found.front().field);
  const ClientJson* compact =
      outputs == nullptr ? nullptr : find_in(*outputs, "disable_any_whitespace");
  asked->constraint->any_whitespace = compact != nullptr && !compact->get<bool>();
}

}  // namespace

void read_constraint(const ClientJson& body, TextRequest* asked) {
  read_form(body, asked);
  read_any_whitespace(body, asked);
}

}  // namespace recurve

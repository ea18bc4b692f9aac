#include "server/http/openai/constraint_fields.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "server/http/body_fields.h"

namespace recurve {
namespace {

using Ordered = nlohmann::ordered_json;
using Form = ConstraintText::Form;

struct Found {
  std::string field;
  ConstraintText constraint;
};

const Ordered* find_in(const Ordered& object, const char* name) {
  const auto found = object.is_object() ? object.find(name) : object.end();
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

// A text, or the JSON that it would be.
std::string text_or_json(const Ordered& value) {
  return value.is_string() ? value.get<std::string>() : value.dump();
}

std::string text_of(const Ordered& value, const std::string& field) {
  if (!value.is_string()) throw BadField(field, field + " must be a string");
  return value.get<std::string>();
}

ConstraintText schema_of(const Ordered* schema, const std::string& field) {
  if (schema == nullptr) throw BadField(field, field + " must have a schema");
  return {Form::kJsonSchema, schema->dump()};
}

// {"type": ...}, with the schema in "json_schema", or beside the type where `flat`.
std::optional<ConstraintText> format_of(const Ordered& format, const std::string& field,
                                        bool flat) {
  const Ordered* type = find_in(format, "type");
  const std::string said = type != nullptr && type->is_string() ? type->get<std::string>() : "";
  if (said == "text") return std::nullopt;
  if (said == "json_object") return ConstraintText{Form::kJsonSchema, R"({"type":"object"})"};
  if (said == "json_schema") {
    const Ordered* holder = flat ? &format : find_in(format, "json_schema");
    return schema_of(holder == nullptr ? nullptr : find_in(*holder, "schema"), field);
  }
  if (said == "structural_tag") {
    Ordered tags = format;
    tags.erase("type");
    return ConstraintText{Form::kStructuralTag, tags.dump()};
  }
  throw BadField(field, field +
                            ".type must be \"text\", \"json_object\", \"json_schema\" or "
                            "\"structural_tag\"");
}

// What other servers call guided_NAME, or NAME of structured_outputs.
void read_guide(const Ordered& holder, const std::string& prefix, std::vector<Found>* found) {
  const auto add = [&](const char* name, const auto& read) {
    const std::string field = prefix + name;
    const Ordered* value = find_in(holder, prefix.ends_with('.') ? name : field.c_str());
    if (value != nullptr) found->push_back({field, read(*value, field)});
  };
  add("json", [](const Ordered& value, const std::string&) {
    return ConstraintText{Form::kJsonSchema, text_or_json(value)};
  });
  add("regex", [](const Ordered& value, const std::string& field) {
    return ConstraintText{Form::kRegex, text_of(value, field)};
  });
  add("choice", [](const Ordered& value, const std::string&) {
    return ConstraintText{Form::kChoice, value.dump()};
  });
  add("grammar", [](const Ordered& value, const std::string& field) {
    return ConstraintText{Form::kGrammar, text_of(value, field)};
  });
}

}  // namespace

void read_constraint(const nlohmann::json& body, std::string_view text, TextRequest* asked) {
  bool any = false;
  for (const char* field : {"response_format", "text", "guided_json", "guided_regex",
                            "guided_choice", "guided_grammar", "structured_outputs"}) {
    any |= find(body, field) != nullptr;
  }
  if (!any) return;
  const Ordered ordered = Ordered::parse(text);  // it has been parsed before
  std::vector<Found> found;
  if (const Ordered* format = find_in(ordered, "response_format")) {
    if (auto constraint = format_of(*format, "response_format", /*flat=*/false)) {
      found.push_back({"response_format", *std::move(constraint)});
    }
  }
  if (const Ordered* of_text = find_in(ordered, "text")) {
    for (const auto& [name, value] : of_text->items()) {
      if (name == "format" || value.is_null() || (name == "verbosity" && value == "medium"))
        continue;
      throw BadField("text." + name, "text." + name + " is not supported here: leave it out");
    }
    const Ordered* format = find_in(*of_text, "format");
    auto constraint = format == nullptr ? std::nullopt : format_of(*format, "text.format", true);
    if (constraint) found.push_back({"text", *std::move(constraint)});
  }
  read_guide(ordered, "guided_", &found);
  if (const Ordered* outputs = find_in(ordered, "structured_outputs")) {
    read_guide(*outputs, "structured_outputs.", &found);
  }
  if (found.size() > 1) {
    throw BadField(found[1].field, found[1].field + " may not stand beside " + found[0].field);
  }
  if (found.empty()) return;
  asked->constraint = std::move(found.front().constraint);
  asked->constraint_field = std::move(found.front().field);
}

}  // namespace recurve

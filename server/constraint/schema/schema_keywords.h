#pragma once
#include <string_view>

namespace recurve {

// How a keyword of JSON Schema (draft 2020-12) applies to an answer.
enum class KeywordUse {
  kAnnotation,  // annotation, without effect: title, description
  kAny,         // enforced for values of any type
  kNumber,      // enforced for numbers and integers
  kString,      // enforced for strings
  kArray,       // enforced for arrays
  kObject,      // enforced for objects
  kRefused,     // not supported: a schema with it is refused
};

struct SchemaKeyword {
  std::string_view name;
  KeywordUse use;
  // For documentation: limits of what is enforced, or what to write instead.
  std::string_view note = {};
};

// All known keywords. Others are refused by name, except names that begin with "x-" or "_", which
// are for other programs. What is enforced may be stricter than the schema, and never allows more.
inline constexpr SchemaKeyword kSchemaKeywords[] = {
    {"$schema", KeywordUse::kAnnotation},
    {"$id", KeywordUse::kAnnotation, "for the whole schema, or one that contains no $ref"},
    {"id", KeywordUse::kAnnotation, "older drafts: $id"},
    {"$comment", KeywordUse::kAnnotation},
    {"title", KeywordUse::kAnnotation},
    {"description", KeywordUse::kAnnotation},
    {"default", KeywordUse::kAnnotation},
    {"examples", KeywordUse::kAnnotation},
    {"deprecated", KeywordUse::kAnnotation},
    {"readOnly", KeywordUse::kAnnotation},
    {"writeOnly", KeywordUse::kAnnotation},
    {"contentEncoding", KeywordUse::kAnnotation},
    {"contentMediaType", KeywordUse::kAnnotation},
    {"readonly", KeywordUse::kAnnotation, "older drafts: readOnly"},
    {"additionalItems", KeywordUse::kAnnotation,
     "older drafts: without effect if items is one schema"},
    {"links", KeywordUse::kAnnotation, "of JSON Hyper-Schema"},
    {"example", KeywordUse::kAnnotation, "of OpenAPI"},
    {"externalDocs", KeywordUse::kAnnotation, "of OpenAPI"},
    {"xml", KeywordUse::kAnnotation, "of OpenAPI"},
    {"self", KeywordUse::kAnnotation, "of Iglu: the name of the schema"},
    {"enumNames", KeywordUse::kAnnotation, "of forms"},
    {"propertyOrder", KeywordUse::kAnnotation, "of forms"},
    {"markdownDescription", KeywordUse::kAnnotation, "of editors"},
    {"enumDescriptions", KeywordUse::kAnnotation, "of editors"},
    {"errorMessage", KeywordUse::kAnnotation, "of editors"},
    {"$defs", KeywordUse::kAnnotation, "read if a $ref names it"},
    {"definitions", KeywordUse::kAnnotation, "older drafts: $defs"},
    {"$ref", KeywordUse::kAny, "within the schema, # or #/..."},
    {"type", KeywordUse::kAny},
    {"const", KeywordUse::kAny},
    {"enum", KeywordUse::kAny},
    {"anyOf", KeywordUse::kAny},
    {"oneOf", KeywordUse::kAny,
     "if the schemas exclude each other, or that can be enforced with not"},
    {"allOf", KeywordUse::kAny, "if the schemas can be merged into one"},
    {"not", KeywordUse::kAny,
     "of types, values, bounds, counts, required, properties, and combinations of them"},
    {"if", KeywordUse::kAny, "of what is supported in not"},
    {"then", KeywordUse::kAny, "with if"},
    {"else", KeywordUse::kAny, "with if"},
    {"dependentRequired", KeywordUse::kAny},
    {"dependentSchemas", KeywordUse::kAny},
    {"dependencies", KeywordUse::kAny, "older drafts: both of these"},
    {"minimum", KeywordUse::kNumber},
    {"maximum", KeywordUse::kNumber},
    {"exclusiveMinimum", KeywordUse::kNumber},
    {"exclusiveMaximum", KeywordUse::kNumber},
    {"multipleOf", KeywordUse::kNumber,
     "for integers: up to 1,024 without bounds, or with both bounds and few multiples"},
    {"minLength", KeywordUse::kString, "with pattern or format, only if these imply it"},
    {"maxLength", KeywordUse::kString, "as minLength; more than 1,000 acts as 1,000"},
    {"pattern", KeywordUse::kString,
     "for the whole string, with the supported regular expressions"},
    {"format", KeywordUse::kString,
     "strings: those in schema_patterns.cc; int8 to uint64 are bounds of numbers; float and double "
     "have no effect, nor has a format for values of another type; others are refused"},
    {"items", KeywordUse::kArray},
    {"prefixItems", KeywordUse::kArray, "all items are generated"},
    {"minItems", KeywordUse::kArray},
    {"maxItems", KeywordUse::kArray, "more than 1,000 acts as 1,000"},
    {"uniqueItems", KeywordUse::kArray, "false, or for arrays of at most one item"},
    {"properties", KeywordUse::kObject, "in this order"},
    {"required", KeywordUse::kObject},
    {"additionalProperties", KeywordUse::kObject, "absent with properties: false"},
    {"patternProperties", KeywordUse::kObject, "one pattern, without properties"},
    {"propertyNames", KeywordUse::kObject, "a pattern, without properties"},
    {"minProperties", KeywordUse::kObject, "more than 1 only if all properties are named"},
    {"maxProperties", KeywordUse::kObject},
    {"contains", KeywordUse::kRefused},
    {"minContains", KeywordUse::kRefused},
    {"maxContains", KeywordUse::kRefused},
    {"unevaluatedItems", KeywordUse::kRefused, "use items"},
    {"unevaluatedProperties", KeywordUse::kRefused, "use additionalProperties"},
    {"contentSchema", KeywordUse::kRefused},
    {"$anchor", KeywordUse::kRefused, "use a path, #/$defs/..."},
    {"$dynamicRef", KeywordUse::kRefused, "use $ref"},
    {"$dynamicAnchor", KeywordUse::kRefused, "use $ref"},
    {"$vocabulary", KeywordUse::kRefused},
};

// Null for an unknown keyword.
constexpr const SchemaKeyword* find_keyword(std::string_view name) {
  for (const SchemaKeyword& known : kSchemaKeywords) {
    if (known.name == name) return &known;
  }
  return nullptr;
}

}  // namespace recurve

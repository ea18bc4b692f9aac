#pragma once
#include <string_view>

namespace recurve {

// What a keyword of a JSON Schema (draft 2020-12) means for an answer.
enum class KeywordUse {
  kSays,     // says something to people: title, description
  kAny,      // enforced, whatever the type
  kNumber,   // enforced of numbers and integers
  kString,   // of strings
  kArray,    // of arrays
  kObject,   // of objects
  kRefused,  // of 2020-12, and not enforced: a schema with it is refused
};

struct SchemaKeyword {
  std::string_view name;
  KeywordUse use;
  // For people, where there is more to say: what is enforced of it, or what to write instead.
  std::string_view note = {};
};

// All that is served. What does not stand here is refused by name too, but for names that begin
// with "x-" or "_", which say something to other programs. What is enforced may be narrower than
// what the schema allows, and never wider.
inline constexpr SchemaKeyword kSchemaKeywords[] = {
    {"$schema", KeywordUse::kSays},
    {"$id", KeywordUse::kSays, "of the whole schema, or of one without a $ref in it"},
    {"id", KeywordUse::kSays, "as $id, in older drafts"},
    {"$comment", KeywordUse::kSays},
    {"title", KeywordUse::kSays},
    {"description", KeywordUse::kSays},
    {"default", KeywordUse::kSays},
    {"examples", KeywordUse::kSays},
    {"deprecated", KeywordUse::kSays},
    {"readOnly", KeywordUse::kSays},
    {"writeOnly", KeywordUse::kSays},
    {"contentEncoding", KeywordUse::kSays},
    {"contentMediaType", KeywordUse::kSays},
    {"readonly", KeywordUse::kSays, "as readOnly, in older drafts"},
    {"additionalItems", KeywordUse::kSays,
     "of older drafts: beside an items that is one schema it says nothing"},
    {"links", KeywordUse::kSays, "of JSON Hyper-Schema"},
    {"example", KeywordUse::kSays, "of OpenAPI"},
    {"externalDocs", KeywordUse::kSays, "of OpenAPI"},
    {"xml", KeywordUse::kSays, "of OpenAPI"},
    {"self", KeywordUse::kSays, "of Iglu: what the schema is called"},
    {"enumNames", KeywordUse::kSays, "of forms"},
    {"propertyOrder", KeywordUse::kSays, "of forms"},
    {"markdownDescription", KeywordUse::kSays, "of editors"},
    {"enumDescriptions", KeywordUse::kSays, "of editors"},
    {"errorMessage", KeywordUse::kSays, "of editors"},
    {"$defs", KeywordUse::kSays, "what a $ref names of it is read"},
    {"definitions", KeywordUse::kSays, "as $defs"},
    {"$ref", KeywordUse::kAny, "within the schema, # or #/..."},
    {"type", KeywordUse::kAny},
    {"const", KeywordUse::kAny},
    {"enum", KeywordUse::kAny},
    {"anyOf", KeywordUse::kAny},
    {"oneOf", KeywordUse::kAny,
     "of schemas that exclude each other, or of which that can be said with not"},
    {"allOf", KeywordUse::kAny, "of schemas that can be said as one"},
    {"not", KeywordUse::kAny,
     "of types, values, bounds, counts, required, properties, and of what is put together of them"},
    {"if", KeywordUse::kAny, "of what not may be of"},
    {"then", KeywordUse::kAny, "beside if"},
    {"else", KeywordUse::kAny, "beside if"},
    {"dependentRequired", KeywordUse::kAny},
    {"dependentSchemas", KeywordUse::kAny},
    {"dependencies", KeywordUse::kAny, "as both of these, in older drafts"},
    {"minimum", KeywordUse::kNumber},
    {"maximum", KeywordUse::kNumber},
    {"exclusiveMinimum", KeywordUse::kNumber},
    {"exclusiveMaximum", KeywordUse::kNumber},
    {"multipleOf", KeywordUse::kNumber,
     "of integers: up to 1,024 without bounds, and with both where few are within"},
    {"minLength", KeywordUse::kString,
     "beside pattern or format, where all that these take has it"},
    {"maxLength", KeywordUse::kString, "likewise; of more than 1,000, 1,000 are given"},
    {"pattern", KeywordUse::kString, "of the whole string, in what regular expressions have here"},
    {"format", KeywordUse::kString,
     "of strings those of schema_patterns.cc; int8 to uint64 are bounds of numbers, float and "
     "double "
     "say nothing; others are refused, and of values of another type none says anything"},
    {"items", KeywordUse::kArray},
    {"prefixItems", KeywordUse::kArray, "all of them are given"},
    {"minItems", KeywordUse::kArray},
    {"maxItems", KeywordUse::kArray, "of more than 1,000, 1,000 are given"},
    {"uniqueItems", KeywordUse::kArray, "false, or of arrays of at most one item"},
    {"properties", KeywordUse::kObject, "in this order"},
    {"required", KeywordUse::kObject},
    {"additionalProperties", KeywordUse::kObject, "left out beside properties: there are none"},
    {"patternProperties", KeywordUse::kObject, "of one pattern, without properties"},
    {"propertyNames", KeywordUse::kObject, "of a pattern, without properties"},
    {"minProperties", KeywordUse::kObject, "of more than 1, where all properties are named"},
    {"maxProperties", KeywordUse::kObject},
    {"contains", KeywordUse::kRefused},
    {"minContains", KeywordUse::kRefused},
    {"maxContains", KeywordUse::kRefused},
    {"unevaluatedItems", KeywordUse::kRefused, "say it with items"},
    {"unevaluatedProperties", KeywordUse::kRefused, "say it with additionalProperties"},
    {"contentSchema", KeywordUse::kRefused},
    {"$anchor", KeywordUse::kRefused, "name it by its path, #/$defs/..."},
    {"$dynamicRef", KeywordUse::kRefused, "use $ref"},
    {"$dynamicAnchor", KeywordUse::kRefused, "use $ref"},
    {"$vocabulary", KeywordUse::kRefused},
};

// Null: none of these.
constexpr const SchemaKeyword* find_keyword(std::string_view name) {
  for (const SchemaKeyword& known : kSchemaKeywords) {
    if (known.name == name) return &known;
  }
  return nullptr;
}

}  // namespace recurve

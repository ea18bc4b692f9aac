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
// with "x-", which say something to other programs. What is enforced may be narrower than what the
// schema allows, and never wider.
inline constexpr SchemaKeyword kSchemaKeywords[] = {
    {"$schema", KeywordUse::kSays},
    {"$id", KeywordUse::kSays, "of the whole schema only"},
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
    {"$defs", KeywordUse::kSays, "what a $ref names of it is read"},
    {"definitions", KeywordUse::kSays, "as $defs"},
    {"$ref", KeywordUse::kAny, "within the schema, # or #/...; nothing beside it"},
    {"type", KeywordUse::kAny},
    {"const", KeywordUse::kAny, "beside it, type only"},
    {"enum", KeywordUse::kAny, "beside it, type only"},
    {"anyOf", KeywordUse::kAny, "beside it, type only"},
    {"oneOf", KeywordUse::kAny, "of schemas that exclude each other; beside it, type only"},
    {"allOf", KeywordUse::kAny,
     "of schemas and of what stands beside it, that say different things"},
    {"minimum", KeywordUse::kNumber},
    {"maximum", KeywordUse::kNumber},
    {"exclusiveMinimum", KeywordUse::kNumber},
    {"exclusiveMaximum", KeywordUse::kNumber},
    {"multipleOf", KeywordUse::kNumber, "of integers, with both bounds or none"},
    {"minLength", KeywordUse::kString, "not beside pattern or format"},
    {"maxLength", KeywordUse::kString, "not beside pattern or format"},
    {"pattern", KeywordUse::kString, "of the whole string, in what regular expressions have here"},
    {"format", KeywordUse::kString, "date, time, date-time, uuid, ipv4, email, hostname"},
    {"items", KeywordUse::kArray},
    {"prefixItems", KeywordUse::kArray, "all of them are given"},
    {"minItems", KeywordUse::kArray},
    {"maxItems", KeywordUse::kArray},
    {"uniqueItems", KeywordUse::kArray, "false, or of arrays of at most one item"},
    {"properties", KeywordUse::kObject, "in this order"},
    {"required", KeywordUse::kObject},
    {"additionalProperties", KeywordUse::kObject, "left out beside properties: there are none"},
    {"patternProperties", KeywordUse::kObject, "of one pattern, without properties"},
    {"propertyNames", KeywordUse::kObject, "of a pattern, without properties"},
    {"minProperties", KeywordUse::kObject, "of more than 1, where all properties are named"},
    {"maxProperties", KeywordUse::kObject},
    {"not", KeywordUse::kRefused},
    {"if", KeywordUse::kRefused, "say it with anyOf"},
    {"then", KeywordUse::kRefused, "say it with anyOf"},
    {"else", KeywordUse::kRefused, "say it with anyOf"},
    {"dependentRequired", KeywordUse::kRefused, "say it with anyOf"},
    {"dependentSchemas", KeywordUse::kRefused, "say it with anyOf"},
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

}  // namespace recurve

#pragma once
#include <string_view>

namespace recurve {

// How a keyword of JSON Schema (draft 2020-12) applies to an answer.
enum class KeywordUse {
  kAny,      // enforced for values of any type
  kNumber,   // enforced for numbers and integers
  kString,   // enforced for strings
  kArray,    // enforced for arrays
  kObject,   // enforced for objects
  kRefused,  // not supported: a schema with it is refused
};

struct SchemaKeyword {
  std::string_view name;
  KeywordUse use;
  // For documentation: limits of what is enforced, or what to write instead.
  std::string_view note = {};
};

// All keywords that constrain values, of the current draft and of older ones. Others are
// annotations or unknown, and have no effect, as the specification requires. What is enforced may
// be stricter than the schema, and never allows more.
inline constexpr SchemaKeyword kSchemaKeywords[] = {
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
    {"minLength", KeywordUse::kString, "with pattern or format, up to 4,096 states of both"},
    {"maxLength", KeywordUse::kString, "as minLength; more than 1,000 acts as 1,000"},
    {"pattern", KeywordUse::kString, "with the supported regular expressions"},
    {"format", KeywordUse::kString,
     "strings: those in schema_patterns.cc; int8 to uint64 are bounds of numbers; others have no "
     "effect, but regex, which is refused"},
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
    {"unevaluatedItems", KeywordUse::kRefused, "use items"},
    {"unevaluatedProperties", KeywordUse::kRefused, "use additionalProperties"},
    {"$dynamicRef", KeywordUse::kRefused, "use $ref"},
    {"$recursiveRef", KeywordUse::kRefused, "older drafts: use $ref"},
    {"extends", KeywordUse::kRefused, "older drafts: use allOf"},
    {"disallow", KeywordUse::kRefused, "older drafts: use not"},
    {"divisibleBy", KeywordUse::kRefused, "older drafts: use multipleOf"},
};

// Null for a keyword without effect.
constexpr const SchemaKeyword* find_keyword(std::string_view name) {
  for (const SchemaKeyword& known : kSchemaKeywords) {
    if (known.name == name) return &known;
  }
  return nullptr;
}

}  // namespace recurve

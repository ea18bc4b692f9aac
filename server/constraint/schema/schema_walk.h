#pragma once
#include <string>
#include <string_view>

namespace recurve {

inline constexpr int kMostSchemaDepth = 64;
inline constexpr int kMostSchemaNodes = 10000;      // schemas, and values of enums
inline constexpr int kMostSchemaCount = 1000;       // of characters, items or properties
inline constexpr size_t kMostPatternBytes = 16384;  // of all patterns, with repeats expanded
inline constexpr int kMostProperties = 500;         // of one object
// Between two JSON tokens: without a limit, a bad model would generate spaces forever.
inline constexpr int kMostWhitespace = 16;

inline constexpr size_t kMostNamedBytes = 64;  // of an object's names, if it allows other names

// An equivalent or stricter schema with only those keywords that the library enforces: it has
// explicit types, values of an enum have its types, formats are patterns, and additionalProperties
// is explicit. Throws ConstraintRefused, whose message names the keyword and its position.
std::string enforceable_schema(std::string_view schema);

}  // namespace recurve

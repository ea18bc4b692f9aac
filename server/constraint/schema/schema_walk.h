#pragma once
#include <string>
#include <string_view>

namespace recurve {

inline constexpr int kMostSchemaDepth = 64;
inline constexpr int kMostSchemaNodes = 10000;  // schemas, and values of enums
inline constexpr int kMostSchemaCount =
    1000;  // of characters, items or properties that are counted
inline constexpr size_t kMostPatternBytes = 16384;  // of all patterns, with repeats written out
inline constexpr int kMostProperties = 500;         // of one object
// Between two tokens of JSON: a model that is lost would go on with spaces for ever.
inline constexpr int kMostWhitespace = 16;

inline constexpr size_t kMostNamedBytes = 64;  // of an object's names, where it may have others

// A schema that says, in the words that the library reads without leaving anything out, what
// `schema` says, or less than it allows: keywords without a type get theirs, values of an enum that
// are not of the type are gone, formats are patterns, and a closed object is closed in so many
// words. Throws ConstraintRefused with a sentence that names the keyword and where it stands.
std::string enforceable_schema(std::string_view schema);

}  // namespace recurve

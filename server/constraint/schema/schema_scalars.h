#pragma once
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "server/constraint/constraint.h"
#include "server/constraint/regex_walk.h"
#include "server/constraint/schema/schema_keywords.h"

namespace recurve {

// The keywords of numbers and strings, rewritten for the library. `path` is the position of the
// schema. All functions throw ConstraintRefused.

// Reserves capacity in an object, which copies its members when it grows.
inline void reserve(size_t names, nlohmann::ordered_json* object) {
  object->get_ref<nlohmann::ordered_json::object_t&>().reserve(names);
}

// The keywords of a schema, by the types to which they apply.
struct SchemaKeywords {
  std::map<std::string_view, const nlohmann::ordered_json*> of_any, of_number, of_string, of_array,
      of_object;
  const nlohmann::ordered_json* find(std::string_view name) const {
    for (const auto* group : {&of_any, &of_number, &of_string, &of_array, &of_object}) {
      if (const auto found = group->find(name); found != group->end()) return found->second;
    }
    return nullptr;
  }
};

// The keyword with this value; null if it has no effect: an annotation, or an unknown keyword or
// format.
const SchemaKeyword* effective_keyword(std::string_view name, const nlohmann::ordered_json& value);

// A schema for which no value is valid.
class NothingIsValid : public ConstraintRefused {
 public:
  using ConstraintRefused::ConstraintRefused;
};

[[noreturn]] void refuse_schema(const std::string& path, std::string_view keyword,
                                const std::string& why);
// Throws NothingIsValid.
[[noreturn]] void refuse_as_empty(const std::string& path, std::string_view keyword,
                                  const std::string& why = "no value is valid for it");

// The number of JSON values in a value, including itself.
int values_in(const nlohmann::ordered_json& value);

// Refuses numbers that the library would round.
void check_numbers(const nlohmann::ordered_json& value, std::string_view keyword,
                   const std::string& path);

// Whether a value has this type of JSON Schema.
bool has_type(const nlohmann::ordered_json& value, std::string_view type);

// Refuses a format that is not enforced. A format does not constrain values of another type, as in
// the draft. Required before the functions below.
void check_format(const SchemaKeywords& keywords, std::string_view type, const std::string& path);
// `values`: the number of enumerated values of the whole schema, which is increased.
nlohmann::ordered_json read_integer(const SchemaKeywords& keywords, const std::string& path,
                                    int* values);
nlohmann::ordered_json read_number(const SchemaKeywords& keywords, const std::string& path,
                                   int* values);
// The bounds of minLength and maxLength.
TextLengths lengths_of(const nlohmann::ordered_json& string);
// Keeps the length next to a pattern that does not imply it, for counted_pattern().
// `pattern_bytes`: of all patterns of the whole schema, which is increased.
nlohmann::ordered_json read_string(const SchemaKeywords& keywords, const std::string& path,
                                   size_t* pattern_bytes);
std::string checked_pattern(const nlohmann::ordered_json& pattern, std::string_view keyword,
                            const std::string& path, size_t* pattern_bytes,
                            TextLengths* lengths = nullptr);
// Copies two keywords that are counts to `out`.
void counts(const SchemaKeywords& keywords, const char* least, const char* most,
            const std::string& path, nlohmann::ordered_json* out);

}  // namespace recurve

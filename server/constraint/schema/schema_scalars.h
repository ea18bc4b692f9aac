#pragma once
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "server/constraint/constraint.h"
#include "server/constraint/regex_walk.h"

namespace recurve {

// Parts of the walk through a schema: what it says of numbers and strings, as the library reads it.
// `path` is where the schema stands. All throw ConstraintRefused.

// Of an object, which copies all that it has whenever it grows.
inline void reserve(size_t names, nlohmann::ordered_json* object) {
  object->get_ref<nlohmann::ordered_json::object_t&>().reserve(names);
}

// What a schema says, by what its keywords are for.
struct SchemaSaid {
  std::map<std::string_view, const nlohmann::ordered_json*> of_any, of_number, of_string, of_array,
      of_object;
  const nlohmann::ordered_json* find(std::string_view name) const {
    for (const auto* group : {&of_any, &of_number, &of_string, &of_array, &of_object}) {
      if (const auto found = group->find(name); found != group->end()) return found->second;
    }
    return nullptr;
  }
};

// No value is valid for a schema, as is to be seen without looking at any.
class NothingIsValid : public ConstraintRefused {
 public:
  using ConstraintRefused::ConstraintRefused;
};

[[noreturn]] void refuse_schema(const std::string& path, std::string_view keyword,
                                const std::string& why);
// Throws NothingIsValid.
[[noreturn]] void refuse_as_empty(const std::string& path, std::string_view keyword,
                                  const std::string& why = "no value is valid for it");

// Itself and all within it.
int values_in(const nlohmann::ordered_json& value);

// The library writes other numbers than these with fewer digits than they have.
void check_numbers(const nlohmann::ordered_json& value, std::string_view keyword,
                   const std::string& path);

// Whether a value is of one of JSON Schema's types.
bool has_type(const nlohmann::ordered_json& value, std::string_view type);

// A format that is known, and of numbers or of strings; of values that are not of its own type it
// says nothing, as in the draft. Before what follows.
void check_format(const SchemaSaid& said, std::string_view type, const std::string& path);
// `values`: how many the whole schema names so far.
nlohmann::ordered_json read_integer(const SchemaSaid& said, const std::string& path, int* values);
nlohmann::ordered_json read_number(const SchemaSaid& said, const std::string& path, int* values);
// `pattern_bytes`: of all patterns of the whole schema so far.
nlohmann::ordered_json read_string(const SchemaSaid& said, const std::string& path,
                                   size_t* pattern_bytes);
std::string checked_pattern(const nlohmann::ordered_json& pattern, std::string_view keyword,
                            const std::string& path, size_t* pattern_bytes,
                            TextLengths* lengths = nullptr);
// Two keywords that count, into `out`.
void counts(const SchemaSaid& said, const char* least, const char* most, const std::string& path,
            nlohmann::ordered_json* out);

}  // namespace recurve

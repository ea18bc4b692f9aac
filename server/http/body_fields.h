#pragma once
#include <fmt/format.h>

#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/text/json/client_json.h"

namespace recurve {

// Thrown for a field that cannot be read; see guarded().
struct BadField : JsonRefused {
  BadField(std::string field, const std::string& sentence)
      : JsonRefused(sentence, std::move(field)) {}
};

// Of a body, whose fields are found by a linear search.
inline constexpr size_t kMaxFields = 1024;
// Nested lists and objects, in a body and in JSON within a string of it.
inline constexpr size_t kMaxBodyLevels = 64;

// Reads an object of JSON as read_client_json() does. `id_fields`: names of lists of token ids.
ClientJson parse_object(std::string_view text, const WorkLimits& work = {},
                        std::span<const std::string_view> id_fields = {});

// The value of a field; nothing if it is missing or null. Throws BadField if it has another type or
// is out of the type's range.
std::optional<bool> bool_of(const ClientJson& object, const char* field);
std::optional<int64_t> integer_of(const ClientJson& object, const char* field);
std::optional<int32_t> int32_of(const ClientJson& object, const char* field);
std::optional<double> number_of(const ClientJson& object, const char* field);
std::optional<float> float_of(const ClientJson& object, const char* field);
// A value of `field`, which must fit into a float.
float float_of(double value, const char* field);
std::optional<std::string> string_of(const ClientJson& object, const char* field);
// Moves the string out of its field, which is empty afterwards.
std::optional<std::string> take_string(ClientJson& object, const char* field);
// A field that is not null; null if there is none.
ClientJson* find(ClientJson& object, const char* field);
const ClientJson* find(const ClientJson& object, const char* field);
// The strings of a list. wanted: what `field` must be.
std::vector<std::string> strings_of(const ClientJson& list, const char* field, const char* wanted);
// Moves the token ids out of a list; an empty vector if it is missing or null.
std::vector<int32_t> take_ids(ClientJson& object, const char* field);
// `field`: the name of the list.
std::vector<int32_t> take_ids_of(ClientJson& list, const char* field);

// Refuses an object that has a field of another name.
void check_names(const ClientJson& object, std::initializer_list<std::string_view> known);

// As JSON; bytes that are not UTF-8 become U+FFFD.
std::string dump(const nlohmann::json& value);
std::string dump(const ClientJson& value);

}  // namespace recurve

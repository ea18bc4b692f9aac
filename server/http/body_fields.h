#pragma once
#include <fmt/format.h>

#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/request/refusal.h"
#include "server/text/json/client_json.h"
#include "server/text/work_limits.h"

namespace recurve {

// A field that cannot be read; becomes a refusal where the request is read.
struct BadField : std::runtime_error {
  BadField(std::string field_, const std::string& sentence)
      : std::runtime_error(sentence), field(std::move(field_)) {}
  std::string field;
};

// Fields of a body: of an object in which each is looked for by going through all.
inline constexpr size_t kMostFields = 1024;
// Of lists and objects in each other, in a body and in JSON that stands in a text of it.
inline constexpr size_t kMostBodyLevels = 64;

// Reads an object of JSON as read_client_json() does, with the fields that hold token ids. Throws
// BadField with a sentence, and what the limits throw.
ClientJson parse_object(std::string_view text, const WorkLimits& work = {});

// The value of a field; nothing where it is missing or null. Throws BadField where it has another
// type or is out of the type's range.
std::optional<bool> bool_of(const ClientJson& object, const char* field);
std::optional<int64_t> integer_of(const ClientJson& object, const char* field);
std::optional<int32_t> int32_of(const ClientJson& object, const char* field);
std::optional<double> number_of(const ClientJson& object, const char* field);
std::optional<std::string> string_of(const ClientJson& object, const char* field);
// The same without a copy: the field is an empty string afterwards.
std::optional<std::string> take_string(ClientJson& object, const char* field);
// The same, where there is one.
ClientJson* find(ClientJson& object, const char* field);
const ClientJson* find(const ClientJson& object, const char* field);
// The token ids of a list, which has none afterwards; an empty vector where it is missing or null.
std::vector<int32_t> take_ids(ClientJson& object, const char* field);
// The same of a list that is there. `field` is what it is called.
std::vector<int32_t> take_ids_of(ClientJson& list, const char* field);

// Refuses an object that has a field of another name.
void check_names(const ClientJson& object, std::initializer_list<std::string_view> known);

// As JSON; bytes that are not UTF-8 become U+FFFD.
std::string dump(const nlohmann::json& value);
std::string dump(const ClientJson& value);

}  // namespace recurve

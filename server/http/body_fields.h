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
#include "server/text/work_limits.h"

namespace recurve {

// A field that cannot be read; becomes a refusal where the request is read.
struct BadField : std::runtime_error {
  BadField(std::string field_, const std::string& sentence)
      : std::runtime_error(sentence), field(std::move(field_)) {}
  std::string field;
};

// Reads an object of JSON as read_client_json() does. Throws BadField with a sentence, and what the
// limits throw.
nlohmann::json parse_object(std::string_view text, const WorkLimits& work = {});

// The value of a field; nothing where it is missing or null. Throws BadField where it has another
// type or is out of the type's range.
std::optional<bool> bool_of(const nlohmann::json& object, const char* field);
std::optional<int64_t> integer_of(const nlohmann::json& object, const char* field);
std::optional<int32_t> int32_of(const nlohmann::json& object, const char* field);
std::optional<double> number_of(const nlohmann::json& object, const char* field);
std::optional<std::string> string_of(const nlohmann::json& object, const char* field);
// The same, where there is one.
const nlohmann::json* find(const nlohmann::json& object, const char* field);
// A list of integers of 32 bits. `field` is what it is called.
std::vector<int32_t> ids_of(const nlohmann::json& list, const char* field);

// Refuses an object that has a field of another name.
void check_names(const nlohmann::json& object, std::initializer_list<std::string_view> known);

// As JSON; bytes that are not UTF-8 become U+FFFD.
std::string dump(const nlohmann::json& value);

}  // namespace recurve

#include "server/http/body_fields.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <limits>

#include "server/text/client_json.h"
#include "server/text/utf8.h"

namespace recurve {

using nlohmann::json;

namespace {

constexpr size_t kMostLevels = 64;

[[noreturn]] void refuse(const char* field, const char* wanted, const json& got) {
  throw BadField(field, fmt::format("{} must be {}, got {}", field, wanted, got.type_name()));
}

}  // namespace

json parse_object(std::string_view text, const WorkLimits& work) {
  try {
    json object = read_client_json(text, "the body", kMostLevels, work);
    if (!object.is_object()) throw BadField("", "the body must be an object of JSON");
    return object;
  } catch (const JsonRefused& refused) {
    throw BadField(refused.field, refused.what());
  }
}

const json* find(const json& object, const char* field) {
  const auto found = object.find(field);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

std::optional<bool> bool_of(const json& object, const char* field) {
  const json* value = find(object, field);
  if (value == nullptr) return {};
  if (!value->is_boolean()) refuse(field, "true or false", *value);
  return value->get<bool>();
}

std::optional<int64_t> integer_of(const json& object, const char* field) {
  const json* value = find(object, field);
  if (value == nullptr) return {};
  const bool fits = value->is_number_integer() &&
                    (!value->is_number_unsigned() ||
                     value->get<uint64_t>() <= uint64_t{std::numeric_limits<int64_t>::max()});
  if (!fits) refuse(field, "an integer of 64 bits", *value);
  return value->get<int64_t>();
}

std::optional<int32_t> int32_of(const json& object, const char* field) {
  const std::optional<int64_t> value = integer_of(object, field);
  if (!value) return {};
  if (*value < std::numeric_limits<int32_t>::min() ||
      *value > std::numeric_limits<int32_t>::max()) {
    throw BadField(field, fmt::format("{} must be an integer of 32 bits, got {}", field, *value));
  }
  return static_cast<int32_t>(*value);
}

std::optional<double> number_of(const json& object, const char* field) {
  const json* value = find(object, field);
  if (value == nullptr) return {};
  if (!value->is_number()) refuse(field, "a number", *value);
  return value->get<double>();
}

std::optional<std::string> string_of(const json& object, const char* field) {
  const json* value = find(object, field);
  if (value == nullptr) return {};
  if (!value->is_string()) refuse(field, "a string", *value);
  return value->get<std::string>();
}

std::vector<int32_t> ids_of(const json& list, const char* field) {
  if (!list.is_array()) refuse(field, "a list of token ids", list);
  std::vector<int32_t> ids;
  ids.reserve(list.size());
  for (const json& id : list) {
    if (!id.is_number_integer()) refuse(field, "a list of token ids", id);
    const auto value = id.get<int64_t>();
    const bool fits = value >= 0 && value <= std::numeric_limits<int32_t>::max();
    ids.push_back(fits ? static_cast<int32_t>(value) : -1);  // which no vocabulary has
  }
  return ids;
}

void check_names(const json& object, std::initializer_list<std::string_view> known) {
  for (const auto& [name, value] : object.items()) {
    if (std::ranges::find(known, name) != known.end()) continue;
    throw BadField(cut(name), fmt::format("{} is not a field of this request: the fields are {}",
                                          cut(name), fmt::join(known, ", ")));
  }
}

std::string dump(const json& value) {
  return value.dump(-1, ' ', false, json::error_handler_t::replace);
}

}  // namespace recurve

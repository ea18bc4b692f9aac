#include "server/http/body_fields.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "server/text/utf8.h"

namespace recurve {

namespace {

constexpr std::string_view kIdFields[] = {"prompt", "tokens", "stop_token_ids",
                                          "allowed_token_ids"};

[[noreturn]] void refuse(const char* field, const char* wanted, const ClientJson& got) {
  throw BadField(field, fmt::format("{} must be {}, got {}", field, wanted, got.type_name()));
}

}  // namespace

ClientJson parse_object(std::string_view text, const WorkLimits& work) {
  try {
    ValueBudget budget{.most = most_values(text.size())};
    ClientJson object =
        read_client_json(text, "the body", kMostBodyLevels, work, budget, kIdFields);
    if (!object.is_object()) throw BadField("", "the body must be an object of JSON");
    if (object.size() <= kMostFields) return object;
    throw BadField("", fmt::format("the body must have at most {} fields, got {}", kMostFields,
                                   object.size()));
  } catch (const JsonRefused& refused) {
    throw BadField(refused.field, refused.what());
  }
}

const ClientJson* find(const ClientJson& object, const char* field) {
  const auto found = object.find(field);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

ClientJson* find(ClientJson& object, const char* field) {
  return const_cast<ClientJson*>(find(std::as_const(object), field));
}

std::optional<bool> bool_of(const ClientJson& object, const char* field) {
  const ClientJson* value = find(object, field);
  if (value == nullptr) return {};
  if (!value->is_boolean()) refuse(field, "true or false", *value);
  return value->get<bool>();
}

std::optional<int64_t> integer_of(const ClientJson& object, const char* field) {
  const ClientJson* value = find(object, field);
  if (value == nullptr) return {};
  const bool fits = value->is_number_integer() &&
                    (!value->is_number_unsigned() ||
                     value->get<uint64_t>() <= uint64_t{std::numeric_limits<int64_t>::max()});
  if (!fits) refuse(field, "an integer of 64 bits", *value);
  return value->get<int64_t>();
}

std::optional<int32_t> int32_of(const ClientJson& object, const char* field) {
  const std::optional<int64_t> value = integer_of(object, field);
  if (!value) return {};
  if (*value < std::numeric_limits<int32_t>::min() ||
      *value > std::numeric_limits<int32_t>::max()) {
    throw BadField(field, fmt::format("{} must be an integer of 32 bits, got {}", field, *value));
  }
  return static_cast<int32_t>(*value);
}

std::optional<double> number_of(const ClientJson& object, const char* field) {
  const ClientJson* value = find(object, field);
  if (value == nullptr) return {};
  if (!value->is_number()) refuse(field, "a number", *value);
  return value->get<double>();
}

std::optional<std::string> string_of(const ClientJson& object, const char* field) {
  const ClientJson* value = find(object, field);
  if (value == nullptr) return {};
  if (!value->is_string()) refuse(field, "a string", *value);
  return value->get<std::string>();
}

std::optional<std::string> take_string(ClientJson& object, const char* field) {
  ClientJson* value = find(object, field);
  if (value == nullptr) return {};
  if (!value->is_string()) refuse(field, "a string", *value);
  return std::exchange(value->get_ref<std::string&>(), {});
}

std::vector<int32_t> take_ids(ClientJson& object, const char* field) {
  ClientJson* list = find(object, field);
  return list == nullptr ? std::vector<int32_t>() : take_ids_of(*list, field);
}

std::vector<int32_t> take_ids_of(ClientJson& list, const char* field) {
  if (list.is_binary()) return take_ids(list);
  if (!list.is_array() || !list.empty()) {
    refuse(field, "a list of token ids", list.is_array() ? list.front() : list);
  }
  return {};
}

void check_names(const ClientJson& object, std::initializer_list<std::string_view> known) {
  for (const auto& [name, value] : object.items()) {
    if (std::ranges::find(known, name) != known.end()) continue;
    throw BadField(cut(name), fmt::format("{} is not a field of this request: the fields are {}",
                                          cut(name), fmt::join(known, ", ")));
  }
}

std::string dump(const nlohmann::json& value) {
  return value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}
std::string dump(const ClientJson& value) {
  std::string text = value.dump(-1, ' ', false, ClientJson::error_handler_t::replace);
  text.shrink_to_fit();  // it has grown by doubling, and may stay for long
  return text;
}

}  // namespace recurve

#include "server/http/body_fields.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "server/text/cut.h"

namespace recurve {
namespace {

[[noreturn]] void refuse_type(const char* field, const char* wanted, const ClientJson& got) {
  const std::string shown = got.is_number() ? got.dump() : got.type_name();
  throw BadField(field, fmt::format("{} must be {}, got {}", field, wanted, shown));
}

}  // namespace

ClientJson parse_object(std::string_view text, const WorkLimits& work,
                        std::span<const std::string_view> id_fields) {
  ValueBudget budget{.most = most_values(text.size())};
  ClientJson object = read_client_json(text, "the body", kMaxBodyLevels, work, budget, id_fields);
  if (!object.is_object()) throw BadField("", "the body must be a JSON object");
  if (object.size() <= kMaxFields) return object;
  throw BadField(
      "", fmt::format("the body must have at most {} fields, got {}", kMaxFields, object.size()));
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
  if (!value->is_boolean()) refuse_type(field, "true or false", *value);
  return value->get<bool>();
}

std::optional<int64_t> integer_of(const ClientJson& object, const char* field) {
  const ClientJson* value = find(object, field);
  if (value == nullptr) return {};
  const bool fits = value->is_number_integer() &&
                    (!value->is_number_unsigned() ||
                     value->get<uint64_t>() <= uint64_t{std::numeric_limits<int64_t>::max()});
  if (!fits) refuse_type(field, "an integer of 64 bits", *value);
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
  if (!value->is_number()) refuse_type(field, "a number", *value);
  return value->get<double>();
}

std::optional<float> float_of(const ClientJson& object, const char* field) {
  const std::optional<double> value = number_of(object, field);
  return value ? std::optional(float_of(*value, field)) : std::nullopt;
}

float float_of(double value, const char* field) {
  const auto narrow = static_cast<float>(value);
  if (std::isfinite(narrow)) return narrow;
  throw BadField(field, fmt::format("{} must be a number of 32 bits, got {}", field, value));
}

std::vector<std::string> strings_of(const ClientJson& list, const char* field, const char* wanted) {
  const auto is_text = [](const ClientJson& one) { return one.is_string(); };
  if (!list.is_array() || !std::all_of(list.begin(), list.end(), is_text)) {
    throw BadField(field, fmt::format("{} must be {}", field, wanted));
  }
  std::vector<std::string> strings;
  for (const ClientJson& one : list) strings.push_back(one.get<std::string>());
  return strings;
}

std::optional<std::string> string_of(const ClientJson& object, const char* field) {
  const ClientJson* value = find(object, field);
  if (value == nullptr) return {};
  if (!value->is_string()) refuse_type(field, "a string", *value);
  return value->get<std::string>();
}

std::optional<std::string> take_string(ClientJson& object, const char* field) {
  ClientJson* value = find(object, field);
  if (value == nullptr) return {};
  if (!value->is_string()) refuse_type(field, "a string", *value);
  return std::exchange(value->get_ref<std::string&>(), {});
}

std::vector<int32_t> take_ids(ClientJson& object, const char* field) {
  ClientJson* list = find(object, field);
  return list == nullptr ? std::vector<int32_t>() : take_ids_of(*list, field);
}

std::vector<int32_t> take_ids_of(ClientJson& list, const char* field) {
  if (list.is_binary()) return take_ids(list);
  if (!list.is_array() || !list.empty()) {
    refuse_type(field, "a list of token ids", list.is_array() ? list.front() : list);
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
  text.shrink_to_fit();  // it grew by doubling, and may be stored for long
  return text;
}

}  // namespace recurve

#include "server/text/json/json_fields.h"

#include <fmt/core.h>

#include <limits>
#include <stdexcept>

#include "server/text/unsupported.h"

namespace recurve {

std::string brief(const nlohmann::json& value) {
  if (value.is_structured()) return fmt::format("an {} of {}", value.type_name(), value.size());
  return value.is_string() ? quote(value.get_ref<const std::string&>()) : value.dump();
}

std::string quote(std::string_view text) {
  constexpr size_t kMost = 60;
  const nlohmann::json head = text.substr(0, kMost);
  return head.dump(-1, ' ', /*ensure_ascii=*/true, nlohmann::json::error_handler_t::ignore) +
         (text.size() > kMost ? "..." : "");
}

Fields::Fields(const Json& object, std::string where) : object_(&object), where_(std::move(where)) {
  if (!object.is_object()) {
    throw std::runtime_error(fmt::format("{} must be an object, found {}", where_, brief(object)));
  }
}

const Fields::Json* Fields::find(const std::string& key) {
  known_.insert(key);
  const auto found = object_->find(key);
  return found == object_->end() || found->is_null() ? nullptr : &*found;
}

const Fields::Json& Fields::require(const std::string& key) {
  const Json* value = find(key);
  if (value == nullptr) throw std::runtime_error(fmt::format("{}.{} is missing", where_, key));
  return *value;
}

bool Fields::get_bool(const std::string& key, std::optional<bool> if_missing) {
  const Json* value = if_missing ? find(key) : &require(key);
  if (value == nullptr) return *if_missing;
  if (!value->is_boolean()) bad(key, "true or false");
  return value->get<bool>();
}

std::string Fields::get_string(const std::string& key) {
  const Json& value = require(key);
  if (!value.is_string()) bad(key, "a string");
  return value.get<std::string>();
}

const Fields::Json& Fields::get_array(const std::string& key) {
  const Json& value = require(key);
  if (!value.is_array()) bad(key, "an array");
  return value;
}

int32_t Fields::get_id(const std::string& key) {
  const Json& value = require(key);
  constexpr int64_t kMax = std::numeric_limits<int32_t>::max();
  const bool fits = value.is_number_unsigned() ? value.get<uint64_t>() <= uint64_t{kMax} : false;
  if (!fits) bad(key, "a token id");
  return value.get<int32_t>();
}

void Fields::must_be_neutral(const std::string& key, const Json& neutral) {
  const Json* value = find(key);
  if (value == nullptr || *value == neutral) return;
  throw UnsupportedTokenizer(
      fmt::format("{}.{} = {} is not supported", where_, key, brief(*value)));
}

void Fields::finish() const {
  for (const auto& [key, value] : object_->items()) {
    if (known_.contains(key)) continue;
    throw UnsupportedTokenizer(
        fmt::format("{} has {} = {}, which is not supported", where_, quote(key), brief(value)));
  }
}

void Fields::bad(const std::string& key, const std::string& wanted) const {
  const auto found = object_->find(key);
  throw std::runtime_error(
      fmt::format("{}.{} must be {}, found {}", where_, key, wanted,
                  found == object_->end() ? std::string("nothing") : brief(*found)));
}

}  // namespace recurve

#include "server/text/json/json_fields.h"

#include <fmt/core.h>

#include <fstream>
#include <limits>
#include <stdexcept>

namespace recurve {
namespace {

constexpr uintmax_t kMaxFileBytes = 128u << 20;  // public models have up to 35 MB

}  // namespace

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
  unsupported(key);
}

void Fields::finish() const {
  for (const auto& [key, value] : object_->items()) {
    if (known_.contains(key)) continue;
    throw UnsupportedTokenizer(
        fmt::format("{} has {} = {}, which is not supported", where_, quote(key), brief(value)));
  }
}

void Fields::bad(const std::string& key, const std::string& expected) const {
  const auto found = object_->find(key);
  throw std::runtime_error(
      fmt::format("{}.{} must be {}, found {}", where_, key, expected,
                  found == object_->end() ? std::string("nothing") : brief(*found)));
}

void Fields::unsupported(const std::string& key) const {
  throw UnsupportedTokenizer(
      fmt::format("{}.{} = {} is not supported", where_, key, brief(object_->at(key))));
}

void Fields::check_chain(size_t steps) const {
  constexpr size_t kMost = 64;
  if (steps < kMost) return;
  throw UnsupportedTokenizer(
      fmt::format("{} is a chain of more than {} steps, which is not supported", where_, kMost));
}

std::string read_text_file(const std::filesystem::path& path) {
  std::error_code error;
  const uintmax_t size = std::filesystem::file_size(path, error);
  if (error) throw std::runtime_error(fmt::format("{}: {}", path.string(), error.message()));
  if (size > kMaxFileBytes) {
    throw std::runtime_error(fmt::format("{}: a tokenizer file has at most {} bytes, found {}",
                                         path.string(), kMaxFileBytes, size));
  }
  std::string text(size, '\0');
  std::ifstream file(path, std::ios::binary);
  if (!file.read(text.data(), static_cast<std::streamsize>(size))) {
    throw std::runtime_error(fmt::format("{}: cannot be read", path.string()));
  }
  return text;
}

}  // namespace recurve

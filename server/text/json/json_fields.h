#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>

namespace recurve {

// The fields of one JSON object, read by name. Whatever has not been asked for by the time of
// finish() is something this reader does not know, and is refused by name.
// Errors: std::runtime_error (wrong type or value), UnsupportedTokenizer (finish).
class Fields {
 public:
  using Json = nlohmann::json;

  // `where` names the object in messages, e.g. "model". `object` must outlive this.
  Fields(const Json& object, std::string where);

  const std::string& where() const { return where_; }

  // Null if the field is missing or null.
  const Json* find(const std::string& key);
  const Json& require(const std::string& key);
  bool get_bool(const std::string& key, std::optional<bool> if_missing = std::nullopt);
  std::string get_string(const std::string& key);
  const Json& get_array(const std::string& key);
  // A token id: an integer in [0, 2^31).
  int32_t get_id(const std::string& key);

  void ignore(const std::string& key) { known_.insert(key); }
  // The field must be missing or null, or equal to `neutral`, which changes nothing.
  void must_be_neutral(const std::string& key, const Json& neutral);
  void finish() const;

  // Throws std::runtime_error: "`where`.`key` must be `wanted`, found ...".
  [[noreturn]] void bad(const std::string& key, const std::string& wanted) const;

 private:
  const Json* object_;
  std::string where_;
  std::set<std::string> known_;
};

// A JSON value as short ASCII text for a message.
std::string brief(const nlohmann::json& value);

// The beginning of a string from a file, in quotes and ASCII.
std::string quote(std::string_view text);

}  // namespace recurve

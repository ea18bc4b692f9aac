#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>

namespace recurve {

// A tokenizer file that is well formed but needs something that is not implemented. It is never
// ignored, because the ids would be wrong.
class UnsupportedTokenizer : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Reads the fields of one JSON object by name, and refuses those that were not read. Throws
// std::runtime_error for a wrong type or value, UnsupportedTokenizer where a function says so.
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
  // Throws UnsupportedTokenizer unless the field is missing, null or equal to `neutral`, which
  // changes nothing.
  void must_be_neutral(const std::string& key, const Json& neutral);

  // Throws UnsupportedTokenizer if there is a field that was not read.
  void finish() const;

  // Throws std::runtime_error: "`where`.`key` must be `expected`, found ...".
  [[noreturn]] void bad(const std::string& key, const std::string& expected) const;
  // Throws UnsupportedTokenizer: "`where`.`key` = ... is not supported". The field must exist.
  [[noreturn]] void unsupported(const std::string& key) const;
  // Throws UnsupportedTokenizer if a chain of `steps` steps is full.
  void check_chain(size_t steps) const;

 private:
  const Json* object_;
  std::string where_;
  std::set<std::string> known_;
};

// A JSON value as short ASCII text for a message.
std::string brief(const nlohmann::json& value);

// The beginning of a string from a file, in quotes and ASCII.
std::string quote(std::string_view text);

// A whole tokenizer file. Throws std::runtime_error, whose message names the file, if it cannot be
// read or is larger than 128 MiB.
std::string read_text_file(const std::filesystem::path& path);

}  // namespace recurve

#pragma once
#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace recurve {

// Reads config.json so that nothing in it is overlooked: every key must be read, ignored by name,
// or one that does not change the maths of inference (transformers_version, torch_dtype,
// generation defaults, ...). finish() refuses the rest: a key that would
// change the maths and is not implemented is an error.
//
// Every method takes the synonyms of one key; two of them with different values are an error, and
// null counts as absent. All throw std::runtime_error with one sentence: file, key, wanted, found.
class ConfigReader {
 public:
  struct Keys {
    Keys(const char* key) : names{key} {}
    Keys(std::initializer_list<const char*> keys) : names(keys.begin(), keys.end()) {}
    std::vector<std::string> names;
  };

  // `config` outlives the reader. `file` names it in messages.
  ConfigReader(const nlohmann::json& config, std::string file);

  // Values in [min, max].
  int64_t required_int(const Keys& keys, int64_t min, int64_t max);
  int64_t optional_int(const Keys& keys, int64_t fallback, int64_t min, int64_t max);
  double required_number(const Keys& keys, double min, double max);
  double optional_number(const Keys& keys, double fallback, double min, double max);
  bool boolean(const Keys& keys, bool fallback);
  std::string string_one_of(const Keys& keys, const std::string& fallback,
                            const std::vector<std::string>& allowed);

  // For a key of which only one value is implemented: absent or equal to it.
  void must_be(const Keys& keys, const nlohmann::json& value);

  // Read elsewhere, or known not to matter.
  void ignore(std::initializer_list<const char*> keys);

  bool has(std::string_view key) const;      // and not null
  bool is_null(std::string_view key) const;  // and there: for keys whose null is not their default

  // Throws if keys remain, naming all of them.
  void finish() const;

  // For checks between values: throws `FILE: KEY: wanted ..., found ...`.
  [[noreturn]] void fail(const std::string& key, const std::string& wanted,
                         const std::string& found) const;

 private:
  struct Found {
    std::string key;
    const nlohmann::json* value = nullptr;  // null if absent
  };
  Found look_up(const Keys& keys);
  Found require(const Keys& keys, const std::string& wanted);
  int64_t int_in(const Found& found, int64_t min, int64_t max) const;
  double number_in(const Found& found, double min, double max) const;

  const nlohmann::json& config_;
  std::string file_;
  std::set<std::string, std::less<>> known_;
};

}  // namespace recurve

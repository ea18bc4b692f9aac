#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/text/work_limits.h"

namespace recurve {

// Invalid JSON of a client; what() is for the client. `field`: the field that is wrong, if known.
struct JsonRefused : TextRefused {
  explicit JsonRefused(const std::string& sentence, std::string field_ = {})
      : TextRefused(sentence), field(std::move(field_)) {}
  std::string field;
};

// JSON of a client, with the members of objects in order.
using ClientJson = nlohmann::ordered_json;

// A limit of JSON values, for one or several calls.
struct ValueBudget {
  size_t most;
  size_t left = most;
};
// The budget is exceeded.
struct TooManyValues : JsonRefused {
  using JsonRefused::JsonRefused;
};

// Parses JSON in time and memory proportional to its bytes. Levels and values are limited, and the
// names in an object must be unique. `what` names the JSON in messages ("the body"). Throws
// JsonRefused, and what WorkLimits::check() throws.
//
// `id_fields`: members of the object that are lists of token ids, or lists of such lists. Each list
// of integers there becomes a binary value, not an array, for take_ids(): an id takes 4 bytes and
// does not count as a value. Throws JsonRefused if such a list also has other values.
ClientJson read_client_json(std::string_view text, std::string_view what, size_t most_levels,
                            const WorkLimits& work, ValueBudget& budget,
                            std::span<const std::string_view> id_fields = {});
// The ids of a binary value, which is empty afterwards; -1 for an id that is not an int32.
std::vector<int32_t> take_ids(ClientJson& value);

// Most values of JSON of so many bytes: lists, objects and the values in them. Ordinary messages
// are far below it, and each parsed value takes some hundred bytes.
constexpr size_t most_values(size_t bytes) { return (size_t{1} << 15) + bytes / 128; }

// The bytes of JSON for nlohmann's parser; iteration checks the limits.
class JsonBytes {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  static JsonBytes begin(std::string_view text, const WorkLimits& work) {
    return {text.data(), work};
  }
  static JsonBytes end(std::string_view text, const WorkLimits& work) {
    return {text.data() + text.size(), work};
  }
  reference operator*() const { return *at_; }
  JsonBytes& operator++() {
    if (reinterpret_cast<uintptr_t>(++at_) % kCheckEvery == 0) work_->check();
    return *this;
  }
  bool operator==(const JsonBytes& other) const { return at_ == other.at_; }
  bool operator!=(const JsonBytes& other) const { return at_ != other.at_; }

 private:
  static constexpr uintptr_t kCheckEvery = 1 << 16;
  JsonBytes(const char* at, const WorkLimits& work) : at_(at), work_(&work) {}
  const char* at_;
  const WorkLimits* work_;
};

}  // namespace recurve
